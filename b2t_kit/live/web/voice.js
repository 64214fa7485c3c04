// The voice: only one of this device, so that no sentence leaves it; and what this browser keeps
const MUTE = "this browser has no voice on this device, so nothing is spoken.";
const KEPT = "b2t live";
const speech = window.speechSynthesis;
const choices = {aloud: false, perhaps: true, voice: "", rate: "1", phrases: []};
let asked = null;  // what somebody asked to hear, which no finished sentence cuts off

try {
  Object.assign(choices, JSON.parse(localStorage.getItem(KEPT)));
} catch { /* nothing is kept in this browser, or it is not ours */ }
if (!Array.isArray(choices.phrases)) choices.phrases = [];

function choose(change) {
  Object.assign(choices, change);
  try {
    localStorage.setItem(KEPT, JSON.stringify(choices));
  } catch {
    note("This browser keeps nothing, so this is gone when the page is loaded again.", true);
  }
}

function ownVoices() { return speech ? speech.getVoices().filter(one => one.localService) : []; }

// never "on" where nothing can be spoken
function isAloud() { return choices.aloud && ownVoices().length > 0; }

function listVoices() {
  const voices = ownVoices();
  const wanted = voices.find(one => one.voiceURI === choices.voice);
  const voice = wanted || voices.find(one => one.lang.startsWith("en"));
  find("voice").replaceChildren(
    ...voices.map(one => new Option(`${one.name} (${one.lang})`, one.voiceURI)));
  if (voice) find("voice").value = voice.voiceURI;
  find("voice").disabled = !voices.length;
  if (!voices.length) find("voice").add(new Option("none on this device"));
  find("aloud").setAttribute("aria-pressed", String(isAloud()));
  find("aloud").textContent = isAloud() ? "Speak: on" : "Speak: off";
}

function speak(text, isAsked) {
  const voice = ownVoices().find(one => one.voiceURI === find("voice").value);
  if (!voice) {  // the browser's default may be a voice elsewhere
    note(`“${text}”: ${MUTE}`, true);
    return;
  }
  if (isAsked || !asked) speech.cancel();
  const utterance = new SpeechSynthesisUtterance(text);
  utterance.voice = voice;
  utterance.rate = Number(find("rate").value);
  utterance.onend = () => { if (asked === utterance) asked = null; };
  utterance.onerror = event => {
    utterance.onend();
    if (["canceled", "interrupted"].includes(event.error)) return;
    note(event.error === "not-allowed"
      ? "Touch this page once: before that, the browser does not let it speak."
      : `Could not be spoken: ${event.error}`, true);
  };
  if (isAsked) asked = utterance;
  speech.speak(utterance);
}

function speakFinal(one) {  // what the decoder hardly believes is not said as if it were certain
  if (!one.unsure) speak(one.text);
  else if (choices.perhaps) speak(`Perhaps: ${one.text}`);
  else note("Not spoken: the decoder is unsure of this sentence.");
}

function hush() {
  asked = null;
  if (speech) speech.cancel();
}

find("rate").value = choices.rate;
find("perhaps").checked = choices.perhaps;
find("rate").onchange = () => choose({rate: find("rate").value});
find("perhaps").onchange = () => choose({perhaps: find("perhaps").checked});
find("voice").onchange = () => choose({voice: find("voice").value});
find("hush").onclick = hush;
find("aloud").onclick = () => {
  choose({aloud: !isAloud() && ownVoices().length > 0});
  listVoices();
  if (!ownVoices().length) note(`Speak: ${MUTE}`, true);
};
if (speech) speech.onvoiceschanged = listVoices;
listVoices();
