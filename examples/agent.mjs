// An agent in JavaScript, written from docs/protocol.md alone: `npm install @nats-io/transport-node`, then
// `node examples/agent.mjs` with OVEN_URL, OVEN_RUN and OVEN_CREDS as `oven-controller creds add scout` prints them.
//
// It halves the learning rate when the gradient norm leaves its usual range, raises an alert meanwhile, and votes on other
// agents' ballots.
import { readFileSync } from "node:fs";
import { basename } from "node:path";
import { connect, nkeyAuthenticator } from "@nats-io/transport-node";

const { OVEN_URL, OVEN_RUN, OVEN_CREDS } = process.env;
const name = basename(OVEN_CREDS, ".nk");
const base = `oven.${OVEN_RUN}`;
const LR = "optimizer.lr_scale";
const HEARTBEAT_TICKS = 10;
const SIGNAL = "signal:gradients:grad_norm"; // the kind of evidence of its votes, and the metric that it reads

const nc = await connect({
  servers: OVEN_URL,
  name,
  authenticator: nkeyAuthenticator(new TextEncoder().encode(readFileSync(OVEN_CREDS, "utf8").trim())),
  inboxPrefix: `_INBOX_.${name}`, // the only inbox that the server lets this agent subscribe to
  maxReconnectAttempts: -1,
});
const say = (subject, message) => nc.publish(`${base}.${subject}.${name}`, JSON.stringify(message));

const state = { latest: [0, -1], lockstep: false, lr: null, norms: [], tick: 0, said: 0, seen: "", askedAt: -Infinity };
state.alarmed = false; // whether its alert is raised
const median = (values) => values.toSorted((a, b) => a - b)[values.length >> 1];
const spiking = () => state.norms.length > 20 && state.norms.at(-1) > 5 * median(state.norms);

function status(value, more = {}) {
  state.said = state.tick;
  say("agent", { type: "AgentStatus", state: value, tick: state.tick, seen: state.seen, ...more });
}

function absorb(event) {
  if (event.incarnation !== undefined) {
    const [incarnation, n] = state.latest;
    if (event.incarnation < incarnation || (event.incarnation === incarnation && event.n <= n)) return false;
    state.latest = [event.incarnation, event.n]; // an older one is a duplicate
  }
  if (event.type === "RunStarted") {
    state.lockstep = event.lockstep;
    state.lr = event.actuators.find((actuator) => actuator.name === LR)?.value ?? null;
  } else if (event.type === "Receipt" && event.actuator === LR && event.status === "applied") {
    state.lr = event.after;
  } else if (event.type === "Observation") {
    state.tick = event.tick;
    if (event.metrics.grad_norm !== undefined) state.norms.push(Number(event.metrics.grad_norm)); // "NaN" is a string
    if (state.norms.length > 200) state.norms.shift();
  } else if (event.type === "BallotOpened") {
    if (event.id <= state.seen) return false;
    state.seen = event.id;
  }
  return true;
}

// An alert is sent when the symptom begins and when it ends, not in between.
function alert() {
  const now = state.norms.at(-1);
  const usual = state.norms.length > 20 ? median(state.norms) : Infinity;
  if (state.alarmed ? now > 2 * usual : !spiking()) return;
  state.alarmed = !state.alarmed;
  say("alert", {
    type: "Alert", state: state.alarmed ? "raised" : "cleared", symptom: "grad_norm_spike", metric: "grad_norm",
    value: now, expected: 5 * usual, tick: state.tick,
  });
}

function react(event) {
  if (event.type === "Observation") {
    alert();
    if (spiking() && state.lr !== null && state.tick >= state.askedAt + 20) {
      state.askedAt = state.tick;
      say("vote", {
        type: "Vote", actuator: LR, stance: "propose", value: state.lr / 2, tick: state.tick, confidence: 0.6,
        evidence: [SIGNAL],
        rationale: `gradient norm ${state.norms.at(-1).toPrecision(3)}, usually ${median(state.norms).toPrecision(3)}`,
      });
    }
    if (state.lockstep || state.tick >= state.said + HEARTBEAT_TICKS) status("done");
  } else if (event.type === "BallotOpened") {
    const stance = event.actuator === LR && spiking() ? "for" : "abstain";
    say("vote", {
      type: "Vote", actuator: event.actuator, ballot: event.id, stance, tick: state.tick, confidence: 0.6,
      evidence: stance === "for" ? [SIGNAL] : [],
    });
    status("done");
  }
}

// Live first, history second: no message is missed, and duplicates are dropped.
const live = [];
let caughtUp = false;
for (const kind of ["run", "observation", "receipt", "ballot.*"]) {
  nc.subscribe(`${base}.${kind}`, {
    callback: (error, message) => {
      if (error) return;
      const event = message.json();
      if (!caughtUp) live.push(event);
      else if (absorb(event)) react(event);
    },
  });
}
await nc.flush();
for (let after = 0; ; ) {
  const request = JSON.stringify({ type: "HistoryRequest", after, limit: 512 });
  let batch;
  try {
    batch = (await nc.request(`${base}.history`, request, { timeout: 5000 })).json();
  } catch (error) {
    if (nc.isClosed()) throw error;
    await new Promise((resume) => setTimeout(resume, 250)); // no mesh is running now; ask again until one answers
    continue;
  }
  for (const entry of batch.events) absorb(JSON.parse(entry.body));
  after = batch.events.at(-1)?.seq ?? batch.head;
  if (after >= batch.head) break;
}
status("joined", { needs: ["grad_norm"], moves: [LR], version: "1" });
caughtUp = true;
for (const event of live) if (absorb(event)) react(event);
status("done");
await nc.flush();
console.log(`${name} takes part in ${OVEN_RUN}`);

for (const signal of ["SIGTERM", "SIGINT"]) {
  process.once(signal, async () => {
    status("left");
    await nc.drain();
  });
}
const failure = await nc.closed();
if (failure) {
  console.error(`the connection was closed: ${failure.message}`);
  process.exitCode = 3;
}
