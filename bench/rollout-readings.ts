/** The callers of a fleet in a process of their own, told what to do over IPC, and what they measured. */
import { type ChildProcess, fork } from 'node:child_process';
import { pathToFileURL } from 'node:url';
import { openLoop, percentile } from './bench-server.ts';
import { type Caller, type Counts, Lookups, newCounts, Predictions } from './rollout-traffic.ts';

export const CALLERS = ['lookups', 'predictions'] as const;
export type CallerName = (typeof CALLERS)[number];

/** Calls under way all the time at full speed. */
const IN_FLIGHT: Readonly<Record<CallerName, number>> = { lookups: 16, predictions: 4 };
const SHARES = { p50: 0.5, p90: 0.9, p99: 0.99, p999: 0.999 } as const;

export interface Reading {
  readonly perSecond: number;
  /** Milliseconds. */
  readonly latencies: Readonly<Record<keyof typeof SHARES, number>>;
}

export type Readings = Partial<Record<CallerName, Reading>>;
export type AllCounts = Readonly<Record<CallerName, Counts>>;
/** Calls a second of each. */
export type Rates = Readonly<Record<CallerName, number>>;

interface TrafficOptions {
  readonly folder: string;
  readonly url: string;
  readonly tableRows: number;
}

type Order =
  | { readonly do: 'prepare'; readonly versions: readonly number[] }
  /** At full speed until `stop`. */
  | { readonly do: 'start'; readonly callers: readonly CallerName[] }
  | { readonly do: 'stop' }
  | { readonly do: 'open'; readonly rates: Rates; readonly forMs: number }
  /** Since the last time. */
  | { readonly do: 'count' };

/** The parent's side. Orders are answered one at a time. */
export class TrafficProcess {
  readonly #child: ChildProcess;

  constructor(options: TrafficOptions) {
    this.#child = fork(import.meta.filename, [JSON.stringify(options)]);
  }

  async prepare(versions: readonly number[]): Promise<void> {
    await this.#ask({ do: 'prepare', versions });
  }

  /** At full speed for as long as the work takes. */
  async during(work: () => Promise<unknown>, callers: readonly CallerName[]): Promise<Readings> {
    await this.#ask({ do: 'start', callers });
    await work();
    return (await this.#ask({ do: 'stop' })) as Readings;
  }

  async openLoops(rates: Rates, forMs: number): Promise<Readings> {
    return (await this.#ask({ do: 'open', rates, forMs })) as Readings;
  }

  async counts(): Promise<AllCounts> {
    return (await this.#ask({ do: 'count' })) as AllCounts;
  }

  stop(): void {
    this.#child.kill('SIGTERM');
  }

  #ask(order: Order): Promise<unknown> {
    return new Promise((resolve, reject) => {
      const ended = (): void => reject(new Error('the callers ended'));
      this.#child.once('exit', ended);
      this.#child.once('message', (answer) => {
        this.#child.off('exit', ended);
        resolve(answer);
      });
      this.#child.send(order);
    });
  }
}

function readingOf(latencies: Float64Array, forMs: number): Reading {
  const shares = Object.entries(SHARES).map(([name, share]) => [
    name,
    percentile(latencies, share),
  ]);
  return {
    perSecond: (1_000 * latencies.length) / forMs,
    latencies: Object.fromEntries(shares),
  };
}

/** One after another in each lane, until told to stop. */
async function fullSpeed(
  caller: Caller,
  lanes: number,
  until: { done: boolean },
): Promise<Reading> {
  const latencies: number[] = [];
  const startMs = performance.now();
  const lane = async (): Promise<void> => {
    while (!until.done) {
      const calledMs = performance.now();
      await caller.call();
      latencies.push(performance.now() - calledMs);
    }
  };
  await Promise.all(Array.from({ length: lanes }, lane));
  return readingOf(Float64Array.from(latencies).sort(), performance.now() - startMs);
}

/** The child's side. */
async function serveOrders({ folder, url, tableRows }: TrafficOptions): Promise<void> {
  const predictions = await Predictions.open(folder, url);
  const callers = { lookups: new Lookups(folder, tableRows), predictions };
  const until = { done: false };
  let running: Promise<[CallerName, Reading]>[] = [];
  const obey = async (order: Order): Promise<unknown> => {
    switch (order.do) {
      case 'prepare':
        await predictions.prepare(order.versions);
        return {};
      case 'start':
        until.done = false;
        running = order.callers.map(async (name): Promise<[CallerName, Reading]> => {
          return [name, await fullSpeed(callers[name], IN_FLIGHT[name], until)];
        });
        return {};
      case 'stop':
        until.done = true;
        return Object.fromEntries(await Promise.all(running));
      case 'open': {
        const { rates, forMs } = order;
        const readings = CALLERS.map(async (name) => {
          const load = { perSecond: rates[name], forMs, between: 'sleep' as const };
          return [name, readingOf(await openLoop(() => callers[name].call(), load), forMs)];
        });
        return Object.fromEntries(await Promise.all(readings));
      }
      case 'count': {
        const counts = CALLERS.map((name) => [name, callers[name].counts]);
        for (const name of CALLERS) callers[name].counts = newCounts();
        return Object.fromEntries(counts);
      }
    }
  };
  process.on('message', async (order: Order) => process.send?.((await obey(order)) as object));
  process.on('disconnect', () => process.exit());
}

if (import.meta.url === pathToFileURL(process.argv[1] ?? '').href) {
  await serveOrders(JSON.parse(process.argv[2]!) as TrafficOptions);
}
