/**
 * The callers of a fleet in a process of their own: commands and measurements are exchanged over
 * IPC.
 */
import { type ChildProcess, fork } from 'node:child_process';
import { setPriority } from 'node:os';
import { pathToFileURL } from 'node:url';
import { openLoop, percentile } from './cube-server-process.ts';
import {
  type AnswerCounts,
  type Caller,
  LookupCaller,
  makeCounts,
  PredictionCaller,
} from './rollout-callers.ts';

export const CALLER_NAMES = ['lookups', 'predictions'] as const;
export type CallerName = (typeof CALLER_NAMES)[number];

/** Of callers that yield to the servers. */
const LOW_NICE = 5;
/** Calls in flight at full speed. */
const IN_FLIGHT: Readonly<Record<CallerName, number>> = { lookups: 16, predictions: 4 };
const PERCENTILES = { p50: 0.5, p90: 0.9, p99: 0.99, p999: 0.999 } as const;

export interface Measurement {
  readonly perSecond: number;
  /** Milliseconds. */
  readonly latencies: Readonly<Record<keyof typeof PERCENTILES, number>>;
}

export type Measurements = Partial<Record<CallerName, Measurement>>;
export type CallerCounts = Readonly<Record<CallerName, AnswerCounts>>;
/** Calls per second of each kind of caller. */
export type Rates = Readonly<Record<CallerName, number>>;

interface LoadOptions {
  readonly folder: string;
  readonly url: string;
  readonly tableRows: number;
}

type LoadCommand =
  | { readonly do: 'prepare'; readonly versions: readonly number[] }
  /** At full speed until `stop`. */
  | { readonly do: 'start'; readonly callers: readonly CallerName[] }
  | { readonly do: 'stop' }
  | { readonly do: 'open'; readonly rates: Rates; readonly forMs: number }
  /** Counts since the last `count`. */
  | { readonly do: 'count' };

/** The parent's side. Commands are answered one at a time. */
export class LoadProcess {
  readonly #child: ChildProcess;

  constructor(options: LoadOptions) {
    this.#child = fork(import.meta.filename, [JSON.stringify(options)]);
  }

  async prepare(versions: readonly number[]): Promise<void> {
    await this.#send({ do: 'prepare', versions });
  }

  /** Calls at full speed for as long as `work` takes. */
  async runDuring(
    work: () => Promise<unknown>,
    callers: readonly CallerName[],
  ): Promise<Measurements> {
    await this.#send({ do: 'start', callers });
    await work();
    return (await this.#send({ do: 'stop' })) as Measurements;
  }

  async runOpenLoops(rates: Rates, forMs: number): Promise<Measurements> {
    return (await this.#send({ do: 'open', rates, forMs })) as Measurements;
  }

  async takeCounts(): Promise<CallerCounts> {
    return (await this.#send({ do: 'count' })) as CallerCounts;
  }

  lowerPriority(): void {
    if (this.#child.pid !== undefined) setPriority(this.#child.pid, LOW_NICE);
  }

  stop(): void {
    this.#child.kill('SIGTERM');
  }

  #send(command: LoadCommand): Promise<unknown> {
    return new Promise((resolve, reject) => {
      const ended = (): void => reject(new Error('the process of the callers ended'));
      this.#child.once('exit', ended);
      this.#child.once('message', (answer) => {
        this.#child.off('exit', ended);
        resolve(answer);
      });
      this.#child.send(command);
    });
  }
}

function summarize(latencies: Float64Array, forMs: number): Measurement {
  const shares = Object.entries(PERCENTILES).map(([name, share]) => [
    name,
    percentile(latencies, share),
  ]);
  return {
    perSecond: (1_000 * latencies.length) / forMs,
    latencies: Object.fromEntries(shares),
  };
}

/** Keeps `inFlight` calls in flight until told to stop. */
async function runFullSpeed(
  caller: Caller,
  inFlight: number,
  until: { done: boolean },
): Promise<Measurement> {
  const latencies: number[] = [];
  const startMs = performance.now();
  const callAgain = async (): Promise<void> => {
    while (!until.done) {
      const calledMs = performance.now();
      await caller.call();
      latencies.push(performance.now() - calledMs);
    }
  };
  await Promise.all(Array.from({ length: inFlight }, callAgain));
  return summarize(Float64Array.from(latencies).sort(), performance.now() - startMs);
}

/** The child's side. */
async function serveCommands({ folder, url, tableRows }: LoadOptions): Promise<void> {
  const predictions = await PredictionCaller.open(folder, url);
  const callers = { lookups: new LookupCaller(folder, tableRows), predictions };
  const until = { done: false };
  let running: Promise<[CallerName, Measurement]>[] = [];
  const execute = async (command: LoadCommand): Promise<unknown> => {
    switch (command.do) {
      case 'prepare':
        await predictions.prepare(command.versions);
        return {};
      case 'start':
        until.done = false;
        running = command.callers.map(async (name): Promise<[CallerName, Measurement]> => {
          return [name, await runFullSpeed(callers[name], IN_FLIGHT[name], until)];
        });
        return {};
      case 'stop':
        until.done = true;
        return Object.fromEntries(await Promise.all(running));
      case 'open': {
        const { rates, forMs } = command;
        const measurements = CALLER_NAMES.map(async (name) => {
          const load = { perSecond: rates[name], forMs, waitBy: 'sleep' as const };
          return [name, summarize(await openLoop(() => callers[name].call(), load), forMs)];
        });
        return Object.fromEntries(await Promise.all(measurements));
      }
      case 'count': {
        const counts = CALLER_NAMES.map((name) => [name, callers[name].counts]);
        for (const name of CALLER_NAMES) callers[name].counts = makeCounts();
        return Object.fromEntries(counts);
      }
    }
  };
  process.on('message', async (command: LoadCommand) =>
    process.send?.((await execute(command)) as object),
  );
  process.on('disconnect', () => process.exit());
}

if (import.meta.url === pathToFileURL(process.argv[1] ?? '').href) {
  await serveCommands(JSON.parse(process.argv[2] ?? '') as LoadOptions);
}
