// The listener's view
const PHRASES = ["Yes", "No", "Wait", "Pain"];

function say(text) {  // at once, and without the decoder
  note(`Spoken: ${text}`);
  speak(text, true);
}

function showPhrases() {
  find("phrases").replaceChildren(...[...PHRASES, ...choices.phrases].map(text =>
    make("button", text, {type: "button", onclick: () => say(text)})));
  find("own-phrases").replaceChildren(...choices.phrases.map(text =>
    removable(text, `remove the button ${text}`, () => {
      choose({phrases: choices.phrases.filter(one => one !== text)});
      showPhrases();
    })));
}

function showVerdict() {  // of the last sentence, also while the next one grows
  const shown = Boolean(last && last.text);
  find("verdict").hidden = !shown;
  find("before").textContent = shown && !lastOnStage ? meant(last) : "";
  if (!shown) return;
  for (const name of ["right", "wrong"]) {
    find(name).setAttribute("aria-pressed", String(verdictOf(last) === name));
    find(name).setAttribute("aria-label", `“${meant(last)}” is ${name}`);
  }
}

function showLast() {
  const verdict = verdictOf(last);
  const isTyped = meant(last) !== last.text;
  const plain = verdict === "right" || isTyped;
  const words = isTyped ? meant(last).split(" ").map(word => [word, 1]) : last.words;
  find("words").replaceChildren(...wordSpans(words, plain, last.unknown, last.unsure));
  find("words").removeAttribute("data-doubt");
  find("words").toggleAttribute("data-finished", Boolean(last.text));
  find("words").toggleAttribute("data-wrong", verdict === "wrong");
}

function showNext(message) {  // the next sentence grows; the last one can still be marked
  lastOnStage = false;
  find("words").replaceChildren(...wordSpans(message.words));
  find("words").removeAttribute("data-wrong");
  find("words").removeAttribute("data-finished");
  find("words").toggleAttribute("data-doubt", Boolean(message.doubt));  // to its end
  if (find("note").textContent.startsWith("Not a sentence")) note("");
}

function showListener(message) {
  for (const one of message.sentences) {
    showSentence(one);
    if (one.doubt) {  // words of a damaged signal: dim, and not a sentence
      const isNewest = one === message.sentences[message.sentences.length - 1];
      if (message.final && isNewest) {
        find("words").setAttribute("data-doubt", "");
        note(`Not a sentence: ${one.doubt}`, true);
      }
      continue;
    }
    const isNew = !last || one.number > last.number;
    if (!isNew && one.number !== last.number) continue;
    last = one;
    lastOnStage = isNew || lastOnStage;
    if (lastOnStage) showLast();
    if (isNew && !first && one.text && isAloud()) speakFinal(one);  // never what was said before
  }
  if (message.words && !message.final && message.words.length) showNext(message);
  showVerdict();
}

for (const name of ["right", "wrong"]) {
  find(name).onclick = () => mark(verdictOf(last) === name ? "none" : name, "", last);
}
find("fix").onclick = () => openFix(last);
find("repeat").onclick = () => speak(meant(last), true);
find("type").onsubmit = event => {  // it stays, selected: Enter says it again, typing replaces it
  event.preventDefault();
  say(find("type-text").value.trim());
  find("type-text").select();
};
find("phrase-add").onclick = () => {
  const text = find("type-text").value.trim();
  if (!text || [...PHRASES, ...choices.phrases].includes(text)) return;
  choose({phrases: [...choices.phrases, text]});
  find("type-text").value = "";
  showPhrases();
};
find("open").onclick = () => find("more").showModal();
find("close").onclick = () => find("more").close();
find("whole").hidden = !document.fullscreenEnabled;  // a phone of Apple's has none for pages
find("whole").onclick = () => {
  if (document.fullscreenElement) document.exitFullscreen();
  else document.documentElement.requestFullscreen();
};
showPhrases();
