"use strict";
/* Computes when the operations of a schedule run, with times that a reader chooses. An operation begins when its stage is
   free and its messages are there; shared cores and hosts are not modelled. A test compares the results with
   fdg_jax/schedule/simulator.py. Times are whole units (fdg_jax/explorer/timeline.py), so that sums are exact. */

/** The operations of tick t, counted from 1, while batches keep coming. */
function tickOf(schedule, t) {
  const known = schedule.ticks, back = Math.max(0, Math.ceil((t - known.length) / schedule.period));
  return known[t - 1 - back * schedule.period].map((op) => ({ ...op, t, batch: op.batch + back * schedule.shift }));
}

/** The operations of the first ticks, with `begin` and `end`, and when each stage has finished each tick.
    took(kind, k): the duration of an operation, in units. message: the duration of a message; a link sends one at a time. */
function run(schedule, took, message, ticks) {
  const free = {}, arrived = {}, ended = Array(schedule.K).fill(0), finished = [], ops = [];
  for (let t = 1; t <= ticks; t++) {
    for (const op of tickOf(schedule, t)) {
      const name = `${op.kind}${op.k}`, queue = schedule.spread ? 1 : op.k;
      op.begin = Math.max(free[queue] ?? 0, arrived[`${name}.${op.batch}`] ?? 0);
      ended[op.k - 1] = op.end = free[queue] = op.begin + took(op.kind, op.k);
      for (const [kind, to, later] of schedule.sends[name] ?? []) {
        const wire = `${op.k}-${to}`, there = `${kind}${to}.${op.batch + later}`;
        free[wire] = Math.max(free[wire] ?? 0, op.end) + message;
        arrived[there] = Math.max(arrived[there] ?? 0, free[wire]);
      }
      ops.push(op);
    }
    finished.push([...ended]);
  }
  return { ops, finished };
}

/** The duration of a tick in the steady state, in units: the mean over the fewest ticks after which the run repeats itself. */
function pace(schedule, took, message) {
  const first = schedule.parts > 1 ? 4 : 4 * schedule.K + 8; // with micro-batches a tick is a whole batch
  for (let fill = first; ; fill *= 2) {
    const rows = run(schedule, took, message, 2 * fill).finished.slice(fill - 1);
    for (let period = 1; 2 * period <= rows.length; period++) {
      const grown = rows.slice(period).map((row, i) => row.map((end, k) => end - rows[i][k]));
      if (grown.every((row) => row.every((by, k) => by === grown[0][k]))) return Math.max(...grown[0]) / period;
    }
    if (fill > 8 * first) return (Math.max(...rows.at(-1)) - Math.max(...rows[0])) / (rows.length - 1);
  }
}

/** The times of a schedule, in forward passes of an ordinary stage. Returns ops: its operations; seconds: the time per batch;
    busy: the fraction of time in which each stage works. lengths: {kind: [units at an ordinary stage, at stage K]}. link: the
    time of a message. slow: a stage that takes `factor` times as long; 0 for none. */
function timed(schedule, lengths, link, slow, factor) {
  const { K, unit, parts, spread } = schedule;
  const took = (kind, k) => lengths[kind][k === K ? 1 : 0] * (k === slow ? factor : 1);
  const message = spread ? 0 : link * unit / parts, tick = pace(schedule, took, message);
  const { ops } = run(schedule, took, message, schedule.ticks.length), work = Array(K).fill(0);
  for (const op of tickOf(schedule, schedule.ticks.length)) work[op.k - 1] += took(op.kind, op.k);
  for (const op of ops) [op.begin, op.end] = [op.begin / unit, op.end / unit];
  const total = work.reduce((a, b) => a + b, 0);
  return { ops, seconds: tick / unit, busy: work.map((own) => (spread ? total : own) / tick) };
}
