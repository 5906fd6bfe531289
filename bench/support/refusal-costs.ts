/** What a refusal costs in CPU time, in bare servers and in Hypercube, interleaved in one run. */
import { requireDefined } from '../../lib/core/errors.ts';
import { type CountedServer, startCountedServer } from './counted-server.ts';
import { postBytes, RawHttp } from './raw-http.ts';

/** From the least that a Node server can do to what serving does. */
export const REFUSING_SERVERS: ReadonlyMap<string, string> = new Map([
  ['net-shared', 'bare net server, one read buffer'],
  ['net', 'bare net server'],
  ['node-http', 'bare node:http server'],
  ['hypercube', 'Hypercube'],
  ['hypercube-node', 'Hypercube without its reader'],
]);

const ROUNDS = 5;
const IN_FLIGHT = 16;
/** Requests and bytes of bodies in one round, whichever is less. */
const ROUND_REQUESTS = 8_000;
const ROUND_BYTES = 240e6;

/** @returns microseconds of the server for each request */
async function measureRound(server: CountedServer, request: Uint8Array): Promise<number> {
  const count = Math.min(ROUND_REQUESTS, Math.floor(ROUND_BYTES / request.length));
  const beforeMicros = await server.cpuMicros();
  let sent = 0;
  const callAgain = async (): Promise<void> => {
    const connection = new RawHttp(server.url);
    while (sent++ < count) await connection.call(request).catch(() => undefined);
    connection.close();
  };
  await Promise.all(Array.from({ length: IN_FLIGHT }, callAgain));
  return ((await server.cpuMicros()) - beforeMicros) / count;
}

/**
 * Refuses bodies of this size by each server in turn. @returns the median of the rounds in
 * microseconds, by the keys of REFUSING_SERVERS
 */
export async function measureRefusals(bodyBytes: number): Promise<ReadonlyMap<string, number>> {
  const headers = { 'content-type': 'text/tab-separated-values' };
  const request = postBytes('/v1/ctr:predict', headers, Buffer.alloc(bodyBytes, 'x'));
  const servers = new Map<string, CountedServer>();
  const rounds = new Map<string, number[]>();
  try {
    for (const kind of REFUSING_SERVERS.keys())
      servers.set(kind, await startCountedServer('refusal-server.js', kind));
    // The first round only warms up.
    for (let round = 0; round <= ROUNDS; round++) {
      for (const [kind, server] of servers) {
        const micros = await measureRound(server, request);
        if (round > 0) rounds.set(kind, [...(rounds.get(kind) ?? []), micros]);
      }
    }
  } finally {
    for (const server of servers.values()) server.stop();
  }
  return new Map([...rounds].map(([kind, values]) => [kind, findMedian(values)]));
}

function findMedian(values: readonly number[]): number {
  const sorted = [...values].sort((a, b) => a - b);
  return requireDefined(sorted[sorted.length >> 1], 'a round');
}
