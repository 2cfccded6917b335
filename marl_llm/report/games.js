// ---- games ----------------------------------------------------------------------------------

const signed = (value) => `${value < 0 ? "−" : "+"}${+Math.abs(value).toPrecision(3)}`;

function tokenNodes([text, logprob, advantage]) {
  // A line break is shown as a sign of its own, so that a token which is nothing else can be seen;
  // the last one breaks the line behind the token, so that its number stays beside it.
  const ends = text.endsWith("\n");
  const node = element("span", "token", text.replaceAll("\n", "↵\n").slice(0, ends ? -1 : undefined));
  if (advantage !== null) {
    node.classList.add(advantage < 0 ? "negative" : "positive");
    node.style.setProperty("--a", Math.min(1, Math.abs(advantage) / data.scale).toFixed(3));
    node.dataset.number = `${advantage < 0 ? "−" : "+"}${Math.abs(advantage).toFixed(2)}`;
  }
  const probability = Math.exp(logprob);
  node.numbers = [
    [null, `advantage ${advantage === null ? "none" : signed(advantage)}`],
    [null, `sampled with p = ${probability >= 0.001 ? probability.toFixed(3) : probability.toExponential(1)} (${logprob.toFixed(3)} nats)`],
  ];
  return ends ? [node, "\n"] : [node];
}

function pointAtTokens(reply) {
  let picked = null;
  const pick = (event) => {
    picked?.classList.remove("picked");
    picked = event.target.numbers ? event.target : null;
    if (!picked) return hideTip();
    picked.classList.add("picked");
    return showTip(event.clientX, event.clientY, picked.numbers);
  };
  reply.addEventListener("pointerover", pick);
  reply.addEventListener("click", pick);
  reply.addEventListener("pointerleave", () => { picked?.classList.remove("picked"); hideTip(); });
}

function turnNode(turn, index, twoSeats) {
  const node = element("article", `turn${twoSeats && turn.seat === 1 ? " right" : ""}`);
  node.style.setProperty("--seat", seatColour(turn.seat));
  const who = element("div", "who");
  who.append(element("b", "", turn.agent), element("span", "", `turn ${index + 1}`));
  who.append(element("span", "", turn.policy === null ? `scripted: ${turn.player}` : turn.player));
  if (turn.role !== turn.player) who.append(element("span", "", `as ${turn.role}`));
  if (turn.version !== null) who.append(element("span", "", `weights of update ${turn.version}`));
  const seen = element("details");
  seen.append(element("summary", "", "what it was shown"), element("div", "prompt", turn.text));
  node.append(who, seen);
  if (turn.tokens.length || turn.reply) {
    const reply = element("div", "reply", turn.tokens.length ? "" : turn.reply);
    reply.append(...turn.tokens.flatMap(tokenNodes));
    pointAtTokens(reply);
    node.append(reply);
  }
  const played = element("div", "played");
  const part = (label, value, className) => {
    const span = element("span", className ?? "", `${label} `);
    span.append(element("b", "", value));
    played.append(span);
  };
  if (turn.fault === null) part("plays", turn.action);
  else part("forfeits:", turn.fault, "fault");
  if (turn.reward) part("reward", signed(turn.reward));
  if (turn.shaping) part("shaping", signed(turn.shaping));
  node.append(played);
  return node;
}

// Turns and, behind each, the calls that it made with the turns of theirs.
function turnNodes(game, turns, twoSeats) {
  return turns.flatMap((index) => {
    const made = game.calls.filter((call) => call.turn === index);
    return [turnNode(game.turns[index], index, twoSeats), ...made.map((call) => callNode(game, call))];
  });
}

function callNode(game, call) {
  const node = element("details", "call");
  node.open = byId("game-calls").checked;
  node.style.setProperty("--seat", seatColour(game.turns[call.turns[0]].seat));
  const head = element("summary");
  const part = (className, label, value) => {
    const span = element("span", className, label);
    if (value !== undefined) span.append(element("b", "", value));
    head.append(span);
  };
  const beside = game.calls.filter((other) => other.turn === call.turn);
  const place = beside.length > 1 ? ` (${beside.indexOf(call) + 1} of ${beside.length})` : "";
  part("", `${call.caller} asks ${call.agent}${place}: `, call.asked);
  part("", "ends with: ", call.last ?? "a fault");
  part(call.outcome === "win" ? "better" : "worse", call.outcome === "win" ? "✓ right" : `✗ ${call.outcome === "loss" ? "not right" : call.outcome}`);
  part("", "pay ", signed(call.pay));
  part("", "credit ", call.credit === null ? "none" : signed(call.credit));
  node.append(head, ...turnNodes(game, call.turns, false));
  return node;
}

function endNode(end, seat) {
  const card = element("div", "end");
  card.style.setProperty("--seat", seatColour(seat));
  card.append(element("b", "", end.agent), element("span", "", ` ${end.player}  `));
  card.append(element("b", "", `${end.outcome ?? "no outcome"} ${end.return === null ? "" : signed(end.return)}`));
  return card;
}

const callCount = (game) => `${game.calls.length} ${game.calls.length === 1 ? "call" : "calls"}`;

// In a delegation each call says itself how it ended.
function gameNode(game) {
  const root = element("div", game.delegation ? "tree" : "");
  const ends = element("div", "ends");
  const called = new Set(game.calls.map((call) => call.agent));
  game.ends.forEach((end, seat) => {
    if (!called.has(end.agent) && end.outcome !== "absent") ends.append(endNode(end, seat));
  });
  if (game.delegation) ends.append(element("div", "note", `${callCount(game)}, ${game.uncalled} agents never called`));
  if (!game.terminated) ends.append(element("div", "note", "cut short by the turn limit"));
  const within = new Set(game.calls.flatMap((call) => call.turns));
  const top = game.turns.map((_, index) => index).filter((index) => !within.has(index));
  root.append(ends, ...turnNodes(game, top, !game.delegation && game.ends.length === 2));
  root.append(element("div", "note", `${game.game}, episode ${game.id}, seed ${game.seed}`));
  return root;
}

function games() {
  if (!data.games.length) return;
  byId("games").hidden = false;
  const [update, pick, back, next, numbers] =
    ["game-update", "game-pick", "game-back", "game-next", "game-numbers"].map(byId);
  let at = 0;
  const ended = (game) => game.ends.slice(0, game.delegation ? 1 : undefined).map((end) => end.outcome ?? "cut short");
  const counted = (game) => (game.delegation ? `, ${callCount(game)}` : "");
  const title = (game) => `${game.id}: ${ended(game).join(" / ")}${counted(game)}`;
  const show = (index) => {
    at = index;
    const now = data.games[at];
    if (update.value !== String(now.update) || !pick.options.length) {
      update.value = now.update;
      pick.replaceChildren(...data.games
        .map((game, i) => [game, i])
        .filter(([game]) => game.update === now.update)
        .map(([game, i]) => new Option(title(game), i)));
    }
    pick.value = at;
    back.disabled = at === 0;
    next.disabled = at === data.games.length - 1;
    byId("game").replaceChildren(gameNode(now));
  };
  for (const value of new Set(data.games.map((game) => game.update))) update.append(new Option(value, value));
  update.addEventListener("input", () => {
    const chosen = Number(update.value);
    pick.replaceChildren();
    show(data.games.findIndex((game) => game.update === chosen));
  });
  pick.addEventListener("input", () => show(Number(pick.value)));
  back.addEventListener("click", () => show(at - 1));
  next.addEventListener("click", () => show(at + 1));
  numbers.addEventListener("input", () => byId("game").classList.toggle("numbers-on", numbers.checked));
  byId("game-calls-label").hidden = !data.games.some((game) => game.calls.length);
  byId("game-calls").addEventListener("input", () => show(at));
  byId("legend-low").textContent = `${signed(-data.scale)} less likely`;
  byId("legend-high").textContent = `${signed(data.scale)} more likely`;
  byId("game-count").textContent = data.games.length < data.recorded
    ? `${data.games.length} of ${data.recorded} recorded games` : `${data.recorded} games`;
  const latest = data.games[data.games.length - 1].update;
  show(data.games.findIndex((game) => game.update === latest));
}

curves();
staleness();
policy();
games();
