/** Rounds of load that alternate between subjects, so that other work on the machine hits all. */
import { requireDefined } from '../../lib/core/errors.ts';
import type { RequestRows } from './demo-model.ts';
import type { ProtocolConnector } from './protocol-callers.ts';

/** The first two rounds only warm up. */
const WARM_ROUNDS = 2;
const ROUNDS = 5;
const ROUND_MS = 1_000;

export interface MeasuredServer {
  readonly url: URL;
  cpuSeconds(): Promise<number>;
}

export interface Subject {
  readonly name: string;
  readonly cpuSeconds: () => Promise<number>;
  readonly call: (caller: number, i: number) => Promise<unknown>;
  readonly inFlight: number;
  readonly close: () => void;
  /** CPU time of the server for each request, and requests per second, of each round. */
  readonly micros: number[];
  readonly perSecond: number[];
}

/** Connects `inFlight` callers of a protocol, which have one request in flight each. */
export function createSubject(
  name: string,
  server: MeasuredServer,
  load: {
    readonly connector: ProtocolConnector;
    readonly rows: readonly RequestRows[];
    readonly inFlight: number;
  },
): Subject {
  const { inFlight } = load;
  const connect = load.connector(load.rows);
  const callers = Array.from({ length: inFlight }, () => connect(server.url));
  return {
    name,
    cpuSeconds: () => server.cpuSeconds(),
    call: (caller, i) => requireDefined(callers[caller], 'a caller').call(i),
    inFlight,
    close: () => {
      for (const caller of callers) caller.close();
    },
    micros: [],
    perSecond: [],
  };
}

/** Measures each subject in each round, then closes them. */
export async function runRounds(subjects: readonly Subject[]): Promise<void> {
  for (let round = 0; round < WARM_ROUNDS + ROUNDS; round++) {
    for (const subject of subjects) await runRound(subject, round >= WARM_ROUNDS);
  }
  for (const { close } of subjects) close();
}

async function runRound(subject: Subject, isCounted: boolean): Promise<void> {
  const { cpuSeconds, call, inFlight, micros, perSecond } = subject;
  const beforeSeconds = await cpuSeconds();
  const startMs = performance.now();
  let answered = 0;
  await Promise.all(
    Array.from({ length: inFlight }, async (_, caller) => {
      while (performance.now() < startMs + ROUND_MS) await call(caller, answered++);
    }),
  );
  const seconds = (performance.now() - startMs) / 1_000;
  if (!isCounted) return;
  micros.push((1e6 * ((await cpuSeconds()) - beforeSeconds)) / answered);
  perSecond.push(answered / seconds);
}

export function findMedian(values: readonly number[]): number {
  return requireDefined([...values].sort((a, b) => a - b)[values.length >> 1], 'a round');
}
