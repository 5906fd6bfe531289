/**
 * A world with virtual time. Everything that waits (for a store, a server, a clock) waits here; the
 * seed draws the order of events. A run is reproducible by its seed, and hours take milliseconds.
 */
import { CubeError } from '../../lib/core/errors.ts';
import type { Clock } from '../../lib/platform/clock.ts';
import { Random } from './random.ts';

/** A violated invariant. */
export class Violation extends Error {
  readonly rule: string;

  constructor(rule: string, message: string) {
    super(`${rule}: ${message}`);
    this.rule = rule;
  }
}

interface ScheduledEvent {
  readonly atMs: number;
  readonly order: number;
  readonly run: () => void;
}

const EPOCH_MS = Date.parse('2026-01-01T00:00:00Z');
/** Share of calls that let other processes go first. */
const YIELD_SHARE = 0.3;
const LATENCY_MS = 20;
/** Maximum duration of a call of a stalled process. */
const STALL_MAX_MS = 3000;
/**
 * Share of calls over a bad network whose request or response is lost or late.
 */
const LOSS_SHARE = 0.3;

export class World {
  readonly seed: number;
  readonly log: string[] = [];
  nowMs = 0;
  /** Number of calls of all processes; it orders events of equal time. */
  calls = 0;
  violation: Violation | undefined;
  readonly #heap: ScheduledEvent[] = [];
  #order = 0;

  constructor(seed: number) {
    this.seed = seed;
  }

  record(who: string, what: string): void {
    this.log.push(`${(this.nowMs / 1000).toFixed(3).padStart(9)} ${who.padEnd(12)} ${what}`);
  }

  /** Only the first violation counts: others may follow from it. */
  reportViolation(rule: string, message: string): void {
    this.violation ??= new Violation(rule, message);
    this.record('CHECK', `${rule}: ${message}`);
  }

  require(holds: boolean, rule: string, message: () => string): void {
    if (!holds) this.reportViolation(rule, message());
  }

  schedule(atMs: number, go: () => void): void {
    this.#order += 1;
    push(this.#heap, { atMs, order: this.#order, run: go });
  }

  /**
   * Runs events until that time, until none remain, until `isOver`, or until a violation.
   */
  async run(untilMs: number, isOver: () => boolean = () => false): Promise<void> {
    await runPendingTasks();
    while (this.violation === undefined && !isOver()) {
      const next = this.#heap[0];
      if (next === undefined || next.atMs > untilMs) break;
      pop(this.#heap);
      this.nowMs = Math.max(this.nowMs, next.atMs);
      next.run();
      await runPendingTasks();
    }
    if (this.violation === undefined && !isOver()) this.nowMs = Math.max(this.nowMs, untilMs);
  }
}

/**
 * A process that can be killed: then its pending calls never return. A restart makes a new process.
 */
export class SimProcess {
  readonly name: string;
  readonly world: World;
  readonly random: Random;
  readonly clock: Clock;
  isAlive = true;
  /** Offset of its wall clock. */
  clockOffsetMs = 0;
  /** Until then its calls stall, so that it acts on old observations. */
  slowUntilMs = 0;
  /** Until then its requests and responses may be lost. */
  lossyUntilMs = 0;
  /** Remaining calls until it is killed, before or after the effect of the last one. */
  killIn: { calls: number; isAfter: boolean } | undefined;
  /** The world's call count when it began its current decision. */
  decidedAtCall = 0;
  readonly #onDeath: () => void;

  constructor(world: World, name: string, life: number, onDeath: () => void) {
    this.world = world;
    this.name = name;
    this.random = new Random(world.seed, `${name}/${life}`);
    this.#onDeath = onDeath;
    this.clock = {
      nowMs: () => world.nowMs,
      isoTime: () => new Date(EPOCH_MS + world.nowMs + this.clockOffsetMs).toISOString(),
      sleep: (ms, signal) => this.#sleep(ms, signal),
    };
  }

  start(run: () => Promise<void>): void {
    run().catch((error: unknown) => {
      const text = error instanceof Error ? (error.stack ?? error.message) : String(error);
      this.world.reportViolation('no process ends by itself', `${this.name}: ${text}`);
    });
  }

  kill(): void {
    if (!this.isAlive) return;
    this.isAlive = false;
    this.world.record(this.name, 'killed');
    this.#onDeath();
  }

  /**
   * A call to another component. Other processes may go first, and the process may be killed before
   * or after the effect.
   */
  async call<T>(effect: () => T): Promise<T> {
    const { world } = this;
    world.calls += 1;
    if (world.nowMs < this.slowUntilMs) await this.#sleep(this.random.next() * STALL_MAX_MS);
    else if (this.random.chance(YIELD_SHARE)) await this.#sleep(this.random.next() * LATENCY_MS);
    if (!this.isAlive) return NEVER;
    const armed = this.killIn;
    const isLast = armed !== undefined && armed.calls-- <= 0;
    if (isLast && !armed.isAfter) {
      this.kill();
      return NEVER;
    }
    const result = effect();
    if (!isLast) return result;
    this.kill();
    return NEVER;
  }

  /**
   * A call over the network.
   * @param mayBeLate a lost request may still take effect later
   * @throws CubeError UNAVAILABLE when the request or its response is lost
   */
  async callRemote<T>(effect: () => T, mayBeLate: boolean): Promise<T> {
    const { world, random } = this;
    if (world.nowMs >= this.lossyUntilMs || !random.chance(LOSS_SHARE)) return this.call(effect);
    const loss = random.pick(['request', 'response', 'late']);
    if (loss === 'response') await this.call(effect);
    else await this.call(() => undefined);
    if (loss === 'late' && mayBeLate) {
      world.schedule(world.nowMs + random.next() * STALL_MAX_MS, () => {
        try {
          effect();
        } catch {
          // The caller has already given up.
        }
      });
    }
    throw new CubeError('UNAVAILABLE', 'no answer came');
  }

  #sleep(ms: number, signal?: AbortSignal): Promise<void> {
    const { world } = this;
    return new Promise((resolve) => {
      const go = (): void => {
        if (!this.isAlive) return;
        signal?.removeEventListener('abort', go);
        resolve();
      };
      if (signal?.aborted) resolve();
      else {
        world.schedule(world.nowMs + Math.max(0, ms), go);
        signal?.addEventListener('abort', go);
      }
    });
  }
}

/** Runs all processes until they wait. */
function runPendingTasks(): Promise<void> {
  return new Promise((resolve) => setImmediate(resolve));
}

const NEVER: Promise<never> = new Promise(() => undefined);

function isBefore(a: ScheduledEvent, b: ScheduledEvent): boolean {
  return a.atMs < b.atMs || (a.atMs === b.atMs && a.order < b.order);
}

function push(heap: ScheduledEvent[], item: ScheduledEvent): void {
  let i = heap.push(item) - 1;
  while (i > 0) {
    const parent = (i - 1) >> 1;
    if (!isBefore(item, heap[parent]!)) break;
    heap[i] = heap[parent]!;
    i = parent;
  }
  heap[i] = item;
}

function pop(heap: ScheduledEvent[]): void {
  const item = heap.pop();
  if (item === undefined || heap.length === 0) return;
  let i = 0;
  for (;;) {
    let child = 2 * i + 1;
    if (child >= heap.length) break;
    const right = heap[child + 1];
    if (right !== undefined && isBefore(right, heap[child]!)) child += 1;
    if (!isBefore(heap[child]!, item)) break;
    heap[i] = heap[child]!;
    i = child;
  }
  heap[i] = item;
}
