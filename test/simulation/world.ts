/**
 * A world whose time passes only from one event to the next. Everything that waits (for a store, a server, a clock) waits here;
 * which goes on next is decided by virtual times that a seed draws. So a run is repeated exactly by its seed, and hours take
 * milliseconds.
 */
import { CubeError } from '../../lib/core/errors.ts';
import type { Clock } from '../../lib/platform/clock.ts';
import { Random } from './random.ts';

/** Something that must never be. */
export class Violation extends Error {
  readonly rule: string;

  constructor(rule: string, message: string) {
    super(`${rule}: ${message}`);
    this.rule = rule;
  }
}

interface Waiting {
  readonly atMs: number;
  readonly order: number;
  readonly go: () => void;
}

const EPOCH_MS = Date.parse('2026-01-01T00:00:00Z');
/** Of the calls that a process makes, the share that lets others go first. */
const YIELDS = 0.3;
const LATENCY_MS = 20;
/** A call of a process that stands still takes up to so long. */
const STILL_MS = 3000;
/** Of the questions over a bad network, the share that is lost; with the answer, or before or after it was taken for lost. */
const LOST = 0.3;

export class World {
  readonly seed: number;
  readonly log: string[] = [];
  nowMs = 0;
  /** Calls made by all processes so far: before and after, where times are equal. */
  calls = 0;
  violation: Violation | undefined;
  readonly #heap: Waiting[] = [];
  #order = 0;

  constructor(seed: number) {
    this.seed = seed;
  }

  note(who: string, what: string): void {
    this.log.push(`${(this.nowMs / 1000).toFixed(3).padStart(9)} ${who.padEnd(12)} ${what}`);
  }

  /** The first one counts: what follows may follow from it. */
  violate(rule: string, message: string): void {
    this.violation ??= new Violation(rule, message);
    this.note('CHECK', `${rule}: ${message}`);
  }

  require(holds: boolean, rule: string, message: () => string): void {
    if (!holds) this.violate(rule, message());
  }

  at(atMs: number, go: () => void): void {
    this.#order += 1;
    push(this.#heap, { atMs, order: this.#order, go });
  }

  /** Lets events happen until that time, until nothing is left, until `isOver`, or until a rule is broken. */
  async run(untilMs: number, isOver: () => boolean = () => false): Promise<void> {
    await settle();
    while (this.violation === undefined && !isOver()) {
      const next = this.#heap[0];
      if (next === undefined || next.atMs > untilMs) break;
      pop(this.#heap);
      this.nowMs = Math.max(this.nowMs, next.atMs);
      next.go();
      await settle();
    }
    if (this.violation === undefined && !isOver()) this.nowMs = Math.max(this.nowMs, untilMs);
  }
}

/** One that can be killed: it never comes back from what it waits for. Whoever takes its place is another one. */
export class SimProcess {
  readonly name: string;
  readonly world: World;
  readonly random: Random;
  readonly clock: Clock;
  isAlive = true;
  /** Added to the times of its clock on the wall. */
  clockStepMs = 0;
  /** Until then it stands still for moments: what it has seen is old when it acts. */
  slowMs = 0;
  /** Until then questions and answers of it are lost. */
  lossyMs = 0;
  /** Calls that it may yet make; then it is killed, before or after the call has had its effect. */
  killIn: { calls: number; isAfter: boolean } | undefined;
  /** When it began what it is deciding now, in calls of the world. */
  decidedFrom = 0;
  readonly #onDeath: () => void;

  constructor(world: World, name: string, life: number, onDeath: () => void) {
    this.world = world;
    this.name = name;
    this.random = new Random(world.seed, `${name}/${life}`);
    this.#onDeath = onDeath;
    this.clock = {
      nowMs: () => world.nowMs,
      isoTime: () => new Date(EPOCH_MS + world.nowMs + this.clockStepMs).toISOString(),
      sleep: (ms, signal) => this.#sleep(ms, signal),
    };
  }

  start(run: () => Promise<void>): void {
    run().catch((error: unknown) => {
      const text = error instanceof Error ? (error.stack ?? error.message) : String(error);
      this.world.violate('no process ends by itself', `${this.name}: ${text}`);
    });
  }

  kill(): void {
    if (!this.isAlive) return;
    this.isAlive = false;
    this.world.note(this.name, 'killed');
    this.#onDeath();
  }

  /** A call to something outside: others may go first, and the process may end before or after it has had its effect. */
  async call<T>(effect: () => T): Promise<T> {
    const { world } = this;
    world.calls += 1;
    if (world.nowMs < this.slowMs) await this.#sleep(this.random.next() * STILL_MS);
    else if (this.random.chance(YIELDS)) await this.#sleep(this.random.next() * LATENCY_MS);
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
   * A call over the network. @param mayBeLate what was taken for lost may have its effect yet
   * @throws CubeError UNAVAILABLE when the question or its answer is lost
   */
  async ask<T>(effect: () => T, mayBeLate: boolean): Promise<T> {
    const { world, random } = this;
    if (world.nowMs >= this.lossyMs || !random.chance(LOST)) return this.call(effect);
    const fate = random.pick(['question', 'answer', 'late']);
    if (fate === 'answer') await this.call(effect);
    else await this.call(() => undefined);
    if (fate === 'late' && mayBeLate) {
      world.at(world.nowMs + random.next() * STILL_MS, () => {
        try {
          effect();
        } catch {
          // Nobody hears of it.
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
        world.at(world.nowMs + Math.max(0, ms), go);
        signal?.addEventListener('abort', go);
      }
    });
  }
}

/** Whatever goes on runs until it waits again. */
function settle(): Promise<void> {
  return new Promise((resolve) => setImmediate(resolve));
}

const NEVER: Promise<never> = new Promise(() => undefined);

function isBefore(a: Waiting, b: Waiting): boolean {
  return a.atMs < b.atMs || (a.atMs === b.atMs && a.order < b.order);
}

function push(heap: Waiting[], item: Waiting): void {
  let i = heap.push(item) - 1;
  while (i > 0) {
    const parent = (i - 1) >> 1;
    if (!isBefore(item, heap[parent]!)) break;
    heap[i] = heap[parent]!;
    i = parent;
  }
  heap[i] = item;
}

function pop(heap: Waiting[]): void {
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
