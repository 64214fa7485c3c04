// The operator's view
const COLUMNS = 400;  // bins of 20 ms on the screen
const dark = matchMedia("(prefers-color-scheme: dark)").matches;
const colours = new Uint8ClampedArray(256 * 3);
const SCALE = dark  // lowest, middle, highest
  ? [[110, 170, 235], [26, 33, 41], [240, 120, 105]]
  : [[33, 102, 172], [247, 247, 247], [178, 24, 43]];
for (let at = 0; at < 256; at++) {
  const x = at / 127.5 - 1;
  const from = SCALE[1];
  const to = SCALE[x < 0 ? 0 : 2];
  for (let c = 0; c < 3; c++) {
    colours[3 * at + c] = from[c] + (to[c] - from[c]) * Math.pow(Math.abs(x), 0.8);
  }
}
const recording = find("recording");
const paint = recording.getContext("2d", {willReadFrequently: true});
const blank = `rgb(${colours.slice(381, 384).join()})`;
let newest = 0;  // bins so far
let spoken = [];  // phonemes, with the bins of them

function clearRecording(rows) {
  recording.height = rows;
  paint.fillStyle = blank;
  paint.fillRect(0, 0, COLUMNS, rows);
}

function addColumns(text, rows) {
  const bytes = Uint8Array.from(atob(text), one => one.charCodeAt(0));
  const all = bytes.length / rows;
  const count = Math.min(all, COLUMNS);
  const skip = all - count;
  if (recording.height !== rows) clearRecording(rows);
  paint.drawImage(recording, -count, 0);
  const image = paint.createImageData(count, rows);
  for (let column = 0; column < count; column++) {
    for (let row = 0; row < rows; row++) {
      const value = bytes[(skip + column) * rows + row];
      const at = 4 * (row * count + column);
      for (let c = 0; c < 3; c++) image.data[at + c] = colours[3 * value + c];
      image.data[at + 3] = 255;
    }
  }
  paint.putImageData(image, COLUMNS - count, 0);
}

function showPhonemes() {
  const root = parseFloat(getComputedStyle(document.documentElement).fontSize);
  const apart = 1.3125 * root * COLUMNS / find("phonemes").clientWidth;  // bins; some may not fit
  const shown = [];
  let before = -COLUMNS;
  spoken = spoken.filter(([bin]) => bin > newest - COLUMNS);
  for (const [bin, name] of spoken) {
    if (!name || bin - before < apart) continue;
    const one = make("span", name);
    one.style.left = `${100 * (bin - newest + COLUMNS) / COLUMNS}%`;
    shown.push(one);
    before = bin;
  }
  find("phonemes").replaceChildren(...shown);
}

function removable(label, say, remove) {  // an entry that is removed when it is pressed
  const item = make("li", "");
  const button = make("button", `${label} ✕`, {type: "button", onclick: remove});
  button.setAttribute("aria-label", say);
  item.append(button);
  return item;
}

function showHotwords(words) {
  if (find("hotwords").dataset.words === words.join()) return;
  find("hotwords").dataset.words = words.join();
  find("hotwords").replaceChildren(...words.map(word =>
    removable(word, `expect ${word} no more`, () => request("forget", word))));
}

function askSpelling(sounds) {  // what was heard is how it sounds, not how it is written
  const name = spelled(sounds);
  const field = find("hotword-text");
  field.value = `${name} ${sounds}`;
  field.focus();
  field.setSelectionRange(0, name.length);
  note("How is it written? Type the name before its sounds, then press Add.");
}

function showOperatorWords(message) {
  lastOnStage = message.final && Boolean(last) && !message.doubt;
  find("words").replaceChildren(
    ...wordSpans(message.words, false, message.unknown, message.doubtful));
  find("words").toggleAttribute("data-doubt", Boolean(message.doubt));
  find("words").toggleAttribute("data-finished", lastOnStage);
  const others = message.words.length ? message.alternatives : [];
  find("alternatives").replaceChildren(...others.map(one => make("li", one)));
}

function showOperator(message) {
  if (message.columns) {
    newest = message.bins;
    addColumns(message.columns, message.rows);
  }
  spoken.push(...message.phonemes);
  showPhonemes();
  for (const one of message.sentences) {
    showSentence(one);
    if (!one.doubt && (!last || one.number >= last.number)) last = one;
  }
  if (message.words) showOperatorWords(message);
  if (message.words_ms !== null) find("words-ms").textContent = `${message.words_ms.toFixed(1)} ms`;
  find("say").hidden = !message.says;
  showHotwords(message.hotwords);
  if (document.activeElement !== find("calm")) find("calm").value = message.calm;
  find("calm-text").textContent = message.calm
    ? `shown after ${message.calm.toFixed(2)} s`
    : "shown at once";
  find("keeping").hidden = !message.keeper;
  find("keep-stop").disabled = over || !message.keeps;
  find("keep-delete").disabled = over || !message.exists;
  find("learning").hidden = !message.learning;
  find("learned").textContent = `Decoding with ${message.learning}.`;
  find("morning").disabled = over || !message.learns;
  find("listen").hidden = !message.listen;
  if (message.listen) find("listen").href = message.listen;
  find("counted").textContent = `Stream: ${message.counted}.`;
}

clearRecording(recording.height);
find("cue").onclick = () => request("cue");
find("calm").onchange = () => {
  request("calm", find("calm").value);
  find("calm").blur();
};
find("keep-stop").onclick = () => request("keep-stop");
find("keep-delete").onclick = () => {
  if (confirm("Delete everything that was kept of this session?")) request("keep-delete", feed);
};
find("morning").onclick = () => request("morning");
for (const what of ["hotword", "say"]) {
  find(what).onsubmit = event => {
    event.preventDefault();
    const field = find(`${what}-text`);
    if (request(what, field.value)) field.value = "";
  };
}
document.addEventListener("keydown", event => {
  const typing = event.target instanceof HTMLInputElement;
  const alone = !event.ctrlKey && !event.metaKey && !event.altKey;
  if (event.key === "c" && !listening && !typing && alone) request("cue");
});
