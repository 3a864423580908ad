// Asks the server that this page came from, once a second, what has changed, until the run has ended.
"use strict";
const shown = new Map();
let silent = null;

function show(parts) {
  for (const [id, html] of Object.entries(parts)) {
    const place = document.getElementById(id);
    if (place && shown.get(id) !== html) place.innerHTML = html; // made and escaped by the server
    shown.set(id, html);
  }
}

async function look() {
  let pause = 1000, ended = false;
  try {
    const answer = await fetch("state.json", { cache: "no-store", credentials: "omit", signal: AbortSignal.timeout(5000) });
    if (!answer.ok) throw new Error(answer.status);
    const state = await answer.json();
    show(state.parts);
    document.title = state.title;
    silent = null;
    ended = state.ended;
  } catch {
    silent ??= new Date().toLocaleTimeString();
    pause = 5000;
  }
  const said = document.getElementById("silent");
  said.hidden = silent === null;
  const words = silent === null ? "" : `The server of this page has not answered since ${silent}. What is shown is from before.`;
  if (said.textContent !== words) said.textContent = words;
  if (!ended) setTimeout(look, pause);
}
setTimeout(look, 1000);
