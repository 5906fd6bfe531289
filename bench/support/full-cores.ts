/**
 * Many virtual machines lend a whole core for some seconds of work, and then only a part of it,
 * until it has been idle. Latencies that were measured with a part of a core say nothing.
 */
import { readFileSync } from 'node:fs';

const PROBE_MS = 250;
/** The share of its time that a busy loop gets on a whole core. */
const FULL_SHARE = 0.95;
const IDLE_MS = 5_000;
const WAITS_MAX = 12;

/** Waits until a busy loop gets a whole core, while nothing else runs. */
export async function waitForFullCores(): Promise<void> {
  for (let waits = 0; ; waits++) {
    // The first probe comes after a pause, too: what ran before has used up its share.
    await new Promise((resolve) => setTimeout(resolve, IDLE_MS));
    const share = probe();
    if (share >= FULL_SHARE) return;
    if (waits === WAITS_MAX) {
      process.stderr.write(`a busy loop gets only ${(100 * share).toFixed(0)} % of its core\n`);
      return;
    }
  }
}

/** A clock tick of Linux's /proc/stat. */
const TICK_MS = 10;
/** After user, nice, system, idle, iowait, irq and softirq. */
const STEAL_FIELD = 8;

/**
 * CPU time since the start that the machine wanted and other virtual machines got, in milliseconds;
 * 0 where the system does not say.
 */
export function readStolenMs(): number {
  try {
    const [line = ''] = readFileSync('/proc/stat', 'utf8').split('\n', 1);
    return TICK_MS * Number(line.split(/\s+/)[STEAL_FIELD] ?? 0);
  } catch {
    return 0;
  }
}

/** @returns the share of a core that a busy loop gets */
function probe(): number {
  const startMs = performance.now();
  const before = process.cpuUsage();
  while (performance.now() - startMs < PROBE_MS);
  const { user, system } = process.cpuUsage(before);
  return (user + system) / 1_000 / (performance.now() - startMs);
}
