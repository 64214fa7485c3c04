// Words and finished sentences, in both views
const MOST = 100;  // sentences in the list
let unsure = 0;  // words below this confidence are dotted: the session says it
let last = null;  // the newest finished sentence
let lastOnStage = false;  // its words are the large ones, not those of the next

function meant(one) { return (one.mark && one.mark.text) || one.text; }

function verdictOf(one) { return one.mark && one.mark.verdict !== "none" ? one.mark.verdict : ""; }

// Letters for sounds, so that a word that nobody knows has a name that can be read
const LETTERS = {
  AA: "a", AE: "a", AH: "u", AO: "o", AW: "ow", AY: "ai", CH: "ch", DH: "th", EH: "e", ER: "er",
  EY: "ay", HH: "h", IH: "i", IY: "ee", JH: "j", NG: "ng", OW: "o", OY: "oy", SH: "sh", TH: "th",
  UH: "oo", UW: "oo", ZH: "zh",
};

function spelled(sounds) {
  return sounds.split(" ").map(one => LETTERS[one] || one.toLowerCase()).join("");
}

function unknownRuns(one) {  // marked words beside each other are one word that is not known
  const joined = (one.unknown || []).map(sounds => sounds || "|").join(" ");
  return joined.split("|").map(run => run.trim()).filter(Boolean);
}

function wordSpans(words, plain, unknown, doubtful) {  // with spaces in the text itself
  return words.flatMap(([word, sure], place) => {
    const one = make("span", word, {title: `${Math.round(100 * sure)} % sure`});
    if ((sure < unsure || doubtful) && !plain) one.className = "unsure";
    if (unknown && unknown[place] && !plain) {
      one.className = "unknown";
      one.title = `not known? It sounded like ${spelled(unknown[place])}`;
    }
    return place ? [" ", one] : [one];
  });
}

function mark(verdict, text, one) {  // whether that was possible
  if (!one || !request("mark", `${one.number} ${verdict}${text ? " " + text : ""}`)) return false;
  if (verdict !== "right") hush();  // what is wrong is not spoken to its end
  note({
    right: "Marked as right. Press again to take it back.",
    wrong: "Marked as wrong. Press again to take it back.",
    corrected: "Corrected.",
    none: "Taken back.",
  }[verdict]);
  return true;
}

function markButton(one, name, text) {
  const button = make("button", text, {
    type: "button",
    onclick: () => mark(verdictOf(one) === name ? "none" : name, "", one),
  });
  button.setAttribute("aria-label", `“${meant(one)}” is ${name}`);
  button.setAttribute("aria-pressed", String(verdictOf(one) === name));
  return button;
}

function actionsOf(one) {  // the buttons of a sentence in the list
  const marks = make("span", "", {className: "marks"});
  if (one.text && !one.doubt) {
    const fix = make("button", "Fix", {type: "button", onclick: () => openFix(one)});
    fix.setAttribute("aria-label", `Fix “${meant(one)}”`);
    marks.append(markButton(one, "right", "✓"), markButton(one, "wrong", "✗"), fix);
    if (listening) {
      const repeat = make("button", "Repeat", {
        type: "button",
        className: "repeat",
        onclick: () => speak(meant(one), true),
      });
      repeat.setAttribute("aria-label", `Repeat “${meant(one)}”`);
      marks.append(repeat);
    }
  }
  for (const run of listening ? [] : unknownRuns(one)) {
    const isName = run.split(" ").length <= 16 && !(one.known || []).includes(run);
    const expect = {type: "button", onclick: () => askSpelling(run)};
    if (isName) marks.append(make("button", `Expect ${spelled(run)}`, expect));
  }
  return marks;
}

function remarksOf(one) {
  const verdict = verdictOf(one);
  const runs = unknownRuns(one).map(spelled).join(", ");
  return [
    one.doubt && `not finished: ${one.doubt}`,
    one.unsure && "unsure: ask again",
    one.said && `said: ${one.said}`,
    one.mark && one.mark.text && `corrected; it was read as: ${one.text}`,
    (verdict === "right" || verdict === "wrong") && verdict,
    one.reason !== "cue" && `ended by ${one.reason}`,
    runs && `a word that is not known? It sounded like ${runs}`,
  ].filter(Boolean).join(" · ");
}

function showSentence(one) {  // in the place of one of its number: marked, or come again
  const item = make("li", "");
  const remarks = remarksOf(one);
  item.classList.toggle("doubt", Boolean(one.doubt));
  item.classList.toggle("wrong", verdictOf(one) === "wrong");
  item.classList.toggle("corrected", meant(one) !== one.text);
  item.append(make("span", meant(one) || "(nothing)", {className: "sentence"}), actionsOf(one));
  if (remarks) item.append(make("small", remarks));
  item.dataset.number = one.number;
  const known = find("sentences").querySelector(`[data-number="${one.number}"]`);
  const buttons = known ? [...known.querySelectorAll("button")] : [];
  const pressed = buttons.indexOf(document.activeElement);
  if (known) known.replaceWith(item);
  else find("sentences").prepend(item);
  if (pressed >= 0) item.querySelectorAll("button")[pressed].focus();  // of whoever has a keyboard
  while (find("sentences").children.length > MOST) find("sentences").lastChild.remove();
  if (!known && !first && one.text && !one.doubt) announce(one.text);
}

function forget() {
  find("sentences").replaceChildren();
  find("words").replaceChildren();
  spoken = [];
  newest = 0;
  last = null;
  lastOnStage = false;
  if (listening) showVerdict();
}

function fit() {  // the listener's words as large as they fit; else the newest are in sight
  const stage = find("stage");
  if (listening) {
    const root = parseFloat(getComputedStyle(document.documentElement).fontSize);
    const space = find("speech").clientHeight - find("note").offsetHeight - root;
    const largest = Math.min(5.25, Math.max(2.125, innerWidth / root / 11));
    for (let size = largest; ; size -= 0.25) {
      find("words").style.fontSize = `${size}rem`;
      if (size <= 1.625 || find("words").offsetHeight <= space) break;
    }
  }
  stage.scrollTop = stage.scrollHeight;
}

const OF_THE_SESSION = "#cue, #calm, #say *, #hotword *, #verdict button:not(#repeat), "
  + "#correct-do, #choices button, .marks button:not(.repeat)";

function show(message) {
  (listening ? showListener : showOperator)(message);
  for (const one of message.answers) if (!listening || one.bad) note(one.text, one.bad);
  find("kept").textContent = message.kept;
  for (const one of document.querySelectorAll(OF_THE_SESSION)) one.disabled = over;
  if (over) note("The session has ended: its controls do nothing any more.");
  fit();
}

window.addEventListener("resize", fit);
