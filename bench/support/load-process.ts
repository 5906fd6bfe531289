/**
 * The callers of a fleet in a process of their own: commands and measurements are exchanged over
 * IPC.
 */
import { type ChildProcess, fork } from 'node:child_process';
import { once } from 'node:events';
import { setPriority } from 'node:os';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { requireDefined } from '../../lib/core/errors.ts';
import type { Manifest } from '../../lib/core/manifest.ts';
import { openRepository } from '../../lib/repository/repository.ts';
import { openLoop, percentile } from './cube-server-process.ts';
import { BUNDLE } from './demo-model.ts';
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
/** Open loops are stopped before that. */
const OPEN_MS_MAX = 120_000;

/** Calls of one kind. */
export interface Calls {
  /** Milliseconds, sorted. */
  readonly latencies: Float64Array;
  readonly forMs: number;
}

export type MeasuredCalls = Readonly<Partial<Record<CallerName, Calls>>>;

export interface Measurement {
  readonly perSecond: number;
  /** Milliseconds. */
  readonly latencies: Readonly<Record<keyof typeof PERCENTILES, number>>;
}

/** The percentiles of all calls of one kind in these periods. */
export function summarize(periods: readonly MeasuredCalls[], name: CallerName): Measurement {
  const calls = periods.map((period) => requireDefined(period[name], name));
  const latencies = Float64Array.from(calls.flatMap((list) => [...list.latencies])).sort();
  const forMs = calls.reduce((sum, list) => sum + list.forMs, 0);
  const shares = Object.entries(PERCENTILES).map(([percent, share]) => [
    percent,
    percentile(latencies, share),
  ]);
  return {
    perSecond: (1_000 * latencies.length) / forMs,
    latencies: Object.fromEntries(shares),
  };
}

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
  /** Lookups request this version from now on. */
  | { readonly do: 'use'; readonly version: string }
  /** At full speed until `stop`. */
  | { readonly do: 'start'; readonly callers: readonly CallerName[] }
  | { readonly do: 'stop' }
  /** As open loops, until `stop`. */
  | { readonly do: 'open'; readonly rates: Rates }
  /** Counts since the last `count`. */
  | { readonly do: 'count' };

/** A command or its answer. */
interface Message<T> {
  readonly id: number;
  readonly body: T;
}

/** The parent's side. */
export class LoadProcess {
  readonly #child: ChildProcess;
  readonly #waiting = new Map<number, (answer: unknown) => void>();
  readonly #ended: Promise<never>;
  #sent = 0;

  constructor(options: LoadOptions) {
    const args = [JSON.stringify(options)];
    this.#child = fork(import.meta.filename, args, { serialization: 'advanced' });
    this.#child.on('message', ({ id, body }: Message<unknown>) => {
      this.#waiting.get(id)?.(body);
      this.#waiting.delete(id);
    });
    this.#ended = once(this.#child, 'exit').then(() => {
      throw new Error('the process of the callers ended');
    });
    // Once it has been stopped, nobody waits for it.
    this.#ended.catch(() => undefined);
  }

  async prepare(versions: readonly number[]): Promise<void> {
    await this.#send({ do: 'prepare', versions });
  }

  /** Calls at full speed for as long as `work` takes. */
  async runDuring(
    work: () => Promise<unknown>,
    callers: readonly CallerName[],
  ): Promise<MeasuredCalls> {
    await this.#send({ do: 'start', callers });
    await work();
    return (await this.#send({ do: 'stop' })) as MeasuredCalls;
  }

  /** Calls as open loops for as long as `work` takes. */
  async runOpenLoops(work: () => Promise<unknown>, rates: Rates): Promise<MeasuredCalls> {
    await this.#send({ do: 'open', rates });
    await work();
    return (await this.#send({ do: 'stop' })) as MeasuredCalls;
  }

  /** Lets lookups request this version from now on. */
  async use(version: string): Promise<void> {
    await this.#send({ do: 'use', version });
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
    const message: Message<LoadCommand> = { id: this.#sent++, body: command };
    const answer = new Promise((resolve) => this.#waiting.set(message.id, resolve));
    this.#child.send(message);
    return Promise.race([answer, this.#ended]);
  }
}

/** Keeps `inFlight` calls in flight until told to stop. */
async function runFullSpeed(
  caller: Caller,
  inFlight: number,
  until: { done: boolean },
): Promise<Calls> {
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
  return {
    latencies: Float64Array.from(latencies).sort(),
    forMs: performance.now() - startMs,
  };
}

/** Calls at a fixed rate until told to stop. */
async function runOpenLoop(
  caller: Caller,
  perSecond: number,
  until: { readonly done: boolean },
): Promise<Calls> {
  const startMs = performance.now();
  const load = { perSecond, forMs: OPEN_MS_MAX, until, waitBy: 'sleep' as const };
  const latencies = await openLoop(() => caller.call(), load);
  return { latencies, forMs: performance.now() - startMs };
}

/** The child's side. */
class CommandExecutor {
  readonly #folder: string;
  readonly #callers: { readonly lookups: LookupCaller; readonly predictions: PredictionCaller };
  #manifest: Manifest | undefined;
  #until = { done: false };
  #running: Promise<[CallerName, Calls]>[] = [];

  private constructor({ folder, tableRows }: LoadOptions, predictions: PredictionCaller) {
    const chooseVersion = (): Manifest => requireDefined(this.#manifest, 'a version to request');
    this.#folder = folder;
    this.#callers = {
      lookups: new LookupCaller(folder, tableRows, chooseVersion),
      predictions,
    };
  }

  static async open(options: LoadOptions): Promise<CommandExecutor> {
    const predictions = await PredictionCaller.open(options.folder, options.url);
    return new CommandExecutor(options, predictions);
  }

  async execute(command: LoadCommand): Promise<object> {
    switch (command.do) {
      case 'prepare':
        await this.#callers.predictions.prepare(command.versions);
        return {};
      case 'use': {
        const repository = openRepository(join(this.#folder, 'repository'));
        this.#manifest = await repository.readManifest(BUNDLE, command.version);
        return {};
      }
      case 'start':
        this.#run(command.callers, (name, caller, until) =>
          runFullSpeed(caller, IN_FLIGHT[name], until),
        );
        return {};
      case 'open':
        this.#run(CALLER_NAMES, (name, caller, until) =>
          runOpenLoop(caller, command.rates[name], until),
        );
        return {};
      case 'stop':
        this.#until.done = true;
        return Object.fromEntries(await Promise.all(this.#running));
      case 'count':
        return this.#takeCounts();
    }
  }

  #run(
    names: readonly CallerName[],
    run: (name: CallerName, caller: Caller, until: { done: boolean }) => Promise<Calls>,
  ): void {
    const until = { done: false };
    this.#until = until;
    this.#running = names.map(async (name): Promise<[CallerName, Calls]> => {
      return [name, await run(name, this.#callers[name], until)];
    });
  }

  #takeCounts(): CallerCounts {
    const { lookups, predictions } = this.#callers;
    const counts = { lookups: lookups.counts, predictions: predictions.counts };
    for (const caller of [lookups, predictions]) caller.counts = makeCounts();
    return counts;
  }
}

async function serveCommands(options: LoadOptions): Promise<void> {
  const executor = await CommandExecutor.open(options);
  process.on('message', async ({ id, body }: Message<LoadCommand>) => {
    process.send?.({ id, body: await executor.execute(body) } satisfies Message<object>);
  });
  process.on('disconnect', () => process.exit());
}

if (import.meta.url === pathToFileURL(process.argv[1] ?? '').href) {
  await serveCommands(JSON.parse(process.argv[2] ?? '') as LoadOptions);
}
