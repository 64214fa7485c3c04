"use strict";
// A page's connection to a session: what the stream is doing, and whether anything is still heard of it.
const find = id => document.getElementById(id);
const UNSURE = 0.6;  // words below this confidence look unsure
const SILENT = 3000, LOST = 8000;  // ms without a message: told; closed and tried again. There is one each second
let socket = null, heard = Date.now(), over = false, feed = "", first = true;

function setState(name, text) { find("state").dataset.state = name; find("state").textContent = text; }

function ask(what, text) {  // false if nobody can be asked
  if (over || !socket || socket.readyState !== 1) return false;
  socket.send(JSON.stringify({ask: what, text: text || ""}));
  return true;
}

function drawn(number) {  // the server sends more when it knows that this was drawn; a hidden page draws nothing
  let told = false;
  const tell = () => { if (!told) { told = true; ask("shown", String(number)); } };
  if (document.hidden) tell(); else { requestAnimationFrame(tell); setTimeout(tell, 500); }
}

function wordSpans(words, plain) {  // spans with spaces between them in the text itself
  return words.flatMap(([word, sure], place) => {
    const one = document.createElement("span");
    one.textContent = word;
    if (sure < UNSURE && !plain) { one.className = "unsure"; one.title = `not sure: ${Math.round(100 * sure)} %`; }
    else one.title = `${Math.round(100 * sure)} % sure`;
    return place ? [" ", one] : [one];
  });
}

function lose(text) {  // what was said of the stream, and of what is kept, may be true no more
  setState("connection lost", text);
  if (find("counted")) find("counted").textContent = "Stream: not known while the connection is lost.";
  find("kept").textContent = "Whether this session is kept is not known now.";
}

function connect(show, forget) {  // show(message, first of this connection); forget(): another session
  const scheme = location.protocol === "https:" ? "wss:" : "ws:";
  socket = new WebSocket(`${scheme}//${location.host}/stream${location.search}`);
  first = true;
  socket.onmessage = event => {
    const message = JSON.parse(event.data);
    heard = Date.now();
    if (feed && feed !== message.feed) forget();
    feed = message.feed;
    over = message.over;
    setState(message.state, message.text);
    show(message, first);
    first = false;
    drawn(message.number);
  };
  socket.onclose = event => {
    if (over) return;  // the source has ended: that stays, and there is nothing to try again
    lose(event.code === 1013 && first ? "connection lost: too many pages are open" : "connection lost; trying again");
    setTimeout(() => connect(show, forget), 2000);
  };
}

setInterval(() => {
  const silent = Date.now() - heard;
  if (over || silent < SILENT) return;
  lose(`connection lost: nothing heard for ${Math.round(silent / 1000)} s; trying again`);
  if (silent > LOST && socket && socket.readyState === 1) socket.close();
}, 500);
