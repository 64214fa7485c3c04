// The connection: what the stream is doing, and whether anything is still heard of it
const find = id => document.getElementById(id);

function make(tag, text, more) {
  return Object.assign(document.createElement(tag), {textContent: text}, more);
}

const listening = location.pathname.endsWith("/listen");
document.body.dataset.view = listening ? "listener" : "operator";
if (listening) {
  document.title = "b2t listen";
  find("more").append(find("finished"));
}

// What a fault means to a family; the session's own line is for the technician
const FAMILY = {
  "late": "The words come late: wait for them.",
  "no data": "No signal comes any more, so there are no new words.",
  "refused": "What comes cannot be read, so there are no new words.",
  "damaged": "The signal is bad: words cannot be trusted.",
  "untrusted": "These words cannot be trusted.",
  "failed": "The decoder has stopped, so there are no new words.",
  "connection lost": "This page has lost its connection: the newest words may be missing.",
};
// ms without a message, of which one comes each second, after which that is told; tried again
const SILENT = 3000;
const LOST = 8000;
let socket = null;
let heard = Date.now();
let over = false;  // the session has ended
let feed = "";
let first = true;  // no message came over this connection yet

function announce(text) {  // what a screen reader reads: states and finished sentences
  find("announce").textContent = text;
}

function setState(name, text) {
  const family = FAMILY[name] || "";
  // not again with each second of it
  if (find("state").dataset.state !== name) announce(family || text);
  find("state").dataset.state = name;
  find("state").textContent = text;
  find("family").textContent = family;
  find("family").hidden = !family;
  find("status").classList.toggle("fault", Boolean(family));
  document.body.classList.toggle("stale", Boolean(family) && name !== "late");
}

function note(text, bad) {
  find("note").textContent = text;
  find("note").className = bad ? "bad" : "";
}

function request(what, text) {  // whether somebody can be asked
  if (over || !socket || socket.readyState !== 1) {
    note("Nothing was done: this page is not connected.", true);
    return false;
  }
  socket.send(JSON.stringify({ask: what, text: text || ""}));
  return true;
}

function confirmDrawn(number) {  // the server sends more when it knows that this was drawn
  let told = false;
  const tell = () => {
    if (!told && socket.readyState === 1) {
      socket.send(JSON.stringify({ask: "shown", text: String(number)}));
    }
    told = true;
  };
  if (document.hidden) {  // a hidden page draws nothing
    tell();
  } else {
    requestAnimationFrame(tell);
    setTimeout(tell, 500);
  }
}

function lose(text) {  // what was said of the stream, and of what is kept, may be true no more
  setState("connection lost", text);
  find("counted").textContent = "Stream: not known while the connection is lost.";
  find("kept").textContent = "Whether this session is kept is not known now.";
}

function receive(message) {
  heard = Date.now();
  if (feed && feed !== message.feed) forget();  // another session
  feed = message.feed;
  over = message.over;
  unsure = message.unsure;
  setState(message.state, message.text);
  show(message);
  first = false;
  confirmDrawn(message.number);
}

function connect() {  // beside this page's address, so that a proxy may put a path in front of it
  const path = (listening ? "listen-stream" : "stream") + location.search;
  socket = new WebSocket(new URL(path, location.href.replace(/^http/, "ws")).href);
  first = true;
  socket.onmessage = event => receive(JSON.parse(event.data));
  socket.onclose = event => {
    if (over) return;  // the session has ended: there is nothing to try again
    const refused = event.code === 1013 && first && event.reason;
    lose(refused || "connection lost; trying again");
    setTimeout(connect, 2000);
  };
}

setInterval(() => {
  const silent = Date.now() - heard;
  if (over || silent < SILENT) return;
  lose(`connection lost: nothing heard for ${Math.round(silent / 1000)} s; trying again`);
  if (silent > LOST && socket && socket.readyState === 1) socket.close();
}, 500);
