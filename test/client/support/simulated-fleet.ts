/**
 * A fleet of servers and its clients under virtual time: the product's replicas, balancers, budgets
 * and limits, with servers that are queues. Nothing sleeps, and equal seeds give equal runs.
 */
import type { CallPolicy } from '../../../lib/client/call-policy.ts';
import { type ClientCounters, createCounters } from '../../../lib/client/client-stats.ts';
import type { Connections } from '../../../lib/client/connections.ts';
import { Replica } from '../../../lib/client/replica.ts';
import type { CallTarget } from '../../../lib/client/replica-probe.ts';
import { ReplicaSet } from '../../../lib/client/replica-set.ts';
import { ShardCall, type ShardRequestHandler } from '../../../lib/client/shard-call.ts';
import { CubeError } from '../../../lib/core/errors.ts';
import type { TimerClock } from '../../../lib/platform/clock.ts';
import type { CallResult } from '../../../lib/rpc/channel.ts';

/** Events happen at multiples of this: the loop ends all promises once for each time. */
const STEP_MS = 0.25;

export class EventClock implements TimerClock {
  #step = 0;
  /** Step → what happens then, in order. */
  readonly #events = new Map<number, (() => void)[]>();

  nowMs(): number {
    return this.#step * STEP_MS;
  }

  isoTime(): string {
    return '';
  }

  sleep(ms: number): Promise<void> {
    return new Promise((resolve) => this.after(ms, resolve));
  }

  after(ms: number, run: () => void): void {
    const step = this.#step + Math.max(1, Math.round(ms / STEP_MS));
    const events = this.#events.get(step);
    if (events === undefined) this.#events.set(step, [run]);
    else events.push(run);
  }

  /** Lets time pass. */
  async runUntil(ms: number): Promise<void> {
    while (this.#step < ms / STEP_MS) {
      this.#step++;
      const events = this.#events.get(this.#step);
      if (events === undefined) continue;
      this.#events.delete(this.#step);
      for (const event of events) event();
      await new Promise((resolve) => setImmediate(resolve));
    }
  }
}

/** mulberry32. */
export function createRandom(seed: number): () => number {
  let state = seed;
  return () => {
    state = (state + 0x6d2b_79f5) | 0;
    let mixed = Math.imul(state ^ (state >>> 15), 1 | state);
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed;
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
}

export type ServerState =
  | 'healthy'
  /** Connections are refused. */
  | 'dead'
  /** It answers nothing. */
  | 'hanging'
  /** It fails half of its calls, and much faster than it answers others. */
  | 'flaky'
  /** It takes ten times as long. */
  | 'slow';

const WORKERS = 2;
const SERVICE_MS = 20;
/** Calls that a healthy server serves in a second. */
export const SERVER_RATE: number = (WORKERS * 1_000) / SERVICE_MS;
const NETWORK_MS = 0.5;
const NOTHING: CallResult = { payload: new Uint8Array(0), attachment: new Uint8Array(0) };

/** A queue with some workers. It refuses nothing, and works on calls that nobody waits for. */
export class SimulatedServer implements Connections {
  state: ServerState = 'healthy';
  /** Calls received, without probes. */
  received = 0;
  readonly #clock: EventClock;
  readonly #random: () => number;
  readonly #queue: (() => void)[] = [];
  #idleWorkers = WORKERS;

  constructor(clock: EventClock, random: () => number) {
    this.#clock = clock;
    this.#random = random;
  }

  call(
    _service: string,
    method: string,
    _payload: Uint8Array,
    _attachment: Uint8Array,
    timeoutMs: number,
  ): Promise<CallResult> {
    const isProbe = method === 'probe';
    if (!isProbe) this.received++;
    return new Promise((resolve, reject) => {
      const fail = (code: 'UNAVAILABLE' | 'DEADLINE_EXCEEDED' | 'INTERNAL') => () =>
        reject(new CubeError(code, this.state));
      this.#clock.after(timeoutMs, fail('DEADLINE_EXCEEDED'));
      if (this.state === 'hanging') return;
      if (this.state === 'dead') this.#clock.after(NETWORK_MS, fail('UNAVAILABLE'));
      else if (isProbe) this.#clock.after(NETWORK_MS, () => resolve(NOTHING));
      else if (this.state === 'flaky' && this.#random() < 0.5) {
        this.#clock.after(NETWORK_MS, fail('INTERNAL'));
      } else {
        this.#queue.push(() => resolve(NOTHING));
        this.#work();
      }
    });
  }

  close(): void {}

  #work(): void {
    if (this.#idleWorkers === 0) return;
    const answer = this.#queue.shift();
    if (answer === undefined) return;
    this.#idleWorkers--;
    const factor = this.state === 'slow' ? 10 : 1;
    this.#clock.after(SERVICE_MS * factor * (0.5 + this.#random()), () => {
      this.#idleWorkers++;
      answer();
      this.#work();
    });
  }
}

const TARGET: CallTarget = {
  service: 's',
  method: 'm',
  probeMethod: 'probe',
  versionKey: 'v',
  probePayload: () => new Uint8Array(0),
  checkProbeResponse: () => undefined,
  getLoadedVersions: () => [],
};

/** One process that calls the servers. */
export class SimulatedClient {
  readonly counters: ClientCounters = createCounters();
  /** Answered before the deadline. */
  answered = 0;
  readonly replicas: readonly Replica[];
  readonly #clock: EventClock;
  readonly #set: ReplicaSet;

  constructor(clock: EventClock, servers: readonly SimulatedServer[], policy: CallPolicy) {
    this.#clock = clock;
    this.replicas = servers.map((server, i) => {
      return new Replica(`10.0.0.${i}:1`, server, undefined, undefined, clock);
    });
    const weights = servers.map(() => 1);
    this.#set = new ReplicaSet(0, this.replicas, weights, policy, clock);
  }

  async call(deadlineMs: number): Promise<void> {
    this.counters.calls++;
    const handler: ShardRequestHandler = {
      target: TARGET,
      deadlineMs: this.#clock.nowMs() + deadlineMs,
      getHash: () => 0,
      encodePayload: () => NOTHING.payload,
      encodeAttachment: () => NOTHING.attachment,
      readResponse: () => undefined,
    };
    const context = { clock: this.#clock, counters: this.counters };
    const request = { shard: 0, start: 0, end: 0, parts: [] };
    const failure = await new ShardCall(context, this.#set, handler, request).run();
    if (failure === undefined) this.answered++;
  }

  close(): void {
    for (const replica of this.replicas) replica.close();
  }
}
