// A sentence as it was meant: each word has what the decoder would have said instead
let fixed = null;  // the sentence; it stays that one if another is finished meanwhile
let touched = -1;  // the word whose alternatives are shown

function fixWords() { return find("correct-text").value.split(/\s+/).filter(Boolean); }

function alternativesAt(words, index) {  // how many words from here on become which ones
  const both = fixed.choices.flatMap(([before, after]) => [[before, after], [after, before]]);
  const starts = both.filter(([before]) =>
    before && words.slice(index, index + before.split(" ").length).join(" ") === before);
  const found = starts.map(([before, after]) => [before.split(" ").length, after]);
  return [...found, [1, ""]];
}

function replaceWords(index, count, text) {
  const words = fixWords();
  words.splice(index, count, ...text.split(" ").filter(Boolean));
  find("correct-text").value = words.join(" ");
  touched = text ? index : -1;
  showFix(index);
}

function typeWord(index) {  // the word selected in the sentence, to be typed over
  const words = fixWords();
  const start = words.slice(0, index).join(" ").length + (index ? 1 : 0);
  find("correct-text").value = words.join(" ");
  find("correct-text").focus();
  find("correct-text").setSelectionRange(start, start + words[index].length);
}

function showFix(focused = -1) {  // the word that has the focus, of whoever has a keyboard
  const words = fixWords();
  find("fix-words").replaceChildren(...words.map((word, index) => {
    const button = make("button", word, {type: "button", onclick: () => {
      touched = touched === index ? -1 : index;
      showFix(index);
    }});
    button.setAttribute("aria-pressed", String(index === touched));
    return button;
  }));
  if (focused >= 0) find("fix-words").children[Math.min(focused, words.length - 1)]?.focus();
  find("fix-options").replaceChildren();
  if (touched < 0 || touched >= words.length) return;
  const options = new Map(alternativesAt(words, touched).map(one => [one.join(), one]));
  for (const [count, text] of options.values()) {
    find("fix-options").append(make("button", text || "Leave it out", {
      type: "button",
      onclick: () => replaceWords(touched, count, text),
    }));
  }
  const other = {type: "button", onclick: () => typeWord(touched)};
  find("fix-options").append(make("button", "Another word …", other));
}

function openFix(one, index = -1) {  // the sentence as it is, to be changed
  fixed = one;
  touched = index;
  find("correct-text").value = meant(one);
  find("choices").replaceChildren(...one.others.filter(text => text.trim()).map(text =>
    make("button", text, {type: "button", onclick: () => correct(text, isAloud())})));
  showFix();
  find("fixing").showModal();
  find("fix-words").children[Math.max(index, 0)]?.focus();
}

function correct(text, aloud) {
  if (mark("corrected", text, fixed)) find("fixing").close();
  if (aloud) speak(text, true);
}

find("correct-do").textContent = listening ? "Correct it and speak" : "Correct it";
find("correct-text").oninput = () => {
  touched = -1;
  showFix();
};
find("correct").onsubmit = event => {
  event.preventDefault();
  const text = fixWords().join(" ");
  if (text) correct(text, listening);  // asked for, so also if finished sentences are not spoken
};
find("fix-close").onclick = () => find("fixing").close();
find("words").onclick = event => {
  const index = [...find("words").querySelectorAll("span")].indexOf(event.target);
  const canFix = lastOnStage && last && last.text && !over;
  if (canFix && index >= 0) openFix(last, index);
};
