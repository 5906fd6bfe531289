/**
 * What TLS and API keys cost serving: CPU time per request of 64 rows on kept connections, as a
 * ratio to the same requests in clear, in turns within one run. The service is on one core, the
 * callers on the other.
 */
import { join } from 'node:path';
import { connect } from 'node:tls';
import { pathToFileURL } from 'node:url';
import { formatKeyFile, generateKey } from '../lib/access/api-keys.ts';
import { requireDefined } from '../lib/core/errors.ts';
import { makeTemporaryFolder, removePath, replaceFile } from '../lib/platform/files.ts';
import { CertificateAuthority } from '../test/rpc/support/certificates.ts';
import { pinSelf } from './support/cube-server-process.ts';
import { publishModel, readBodies } from './support/demo-model.ts';
import { postBytes, RawHttp } from './support/raw-http.ts';
import { type Service, startServing } from './support/serving-process.ts';

const CLIENT_CORE = 1;
const ROWS = 64;
const CONNECTIONS = 2;
const ROUNDS = 7;
const ROUND_MS = 700;
const PAUSE_MS = 700;

interface Caller {
  readonly name: string;
  readonly isSecure: boolean;
  readonly headers: Readonly<Record<string, string>>;
}

/** CPU seconds of the service per request, over all rounds. */
async function measure(
  service: Service,
  callers: readonly Caller[],
  bodies: readonly Uint8Array[],
): Promise<number[][]> {
  const results: number[][] = callers.map(() => []);
  const loads = callers.map(({ isSecure, headers }) => {
    const type = { 'content-type': 'text/tab-separated-values', ...headers };
    const requests = bodies.map((body) => postBytes('/v1/ctr:predict', type, body));
    const { hostname: host, port } = service.url;
    const connections = Array.from({ length: CONNECTIONS }, () =>
      isSecure
        ? new RawHttp(service.url, connect({ host, port: Number(port), rejectUnauthorized: false }))
        : new RawHttp(service.url),
    );
    return { requests, connections };
  });
  // The first round warms up.
  for (let round = 0; round <= ROUNDS; round++) {
    for (const [i, { requests, connections }] of loads.entries()) {
      // The service forgets what the caller before used.
      await new Promise((resolve) => setTimeout(resolve, PAUSE_MS));
      const before = await service.cpuSeconds();
      const endMs = performance.now() + ROUND_MS;
      let answered = 0;
      const run = async (connection: RawHttp): Promise<void> => {
        while (performance.now() < endMs) {
          const request = requests[answered++ % requests.length];
          await connection.call(requireDefined(request, 'a request'));
        }
      };
      await Promise.all(connections.map(run));
      const used = (await service.cpuSeconds()) - before;
      if (round > 0) results[i]?.push(used / answered);
    }
  }
  for (const { connections } of loads) for (const connection of connections) connection.close();
  return results;
}

function median(values: readonly number[]): number {
  return [...values].sort((a, b) => a - b)[values.length >> 1] ?? Number.NaN;
}

async function main(): Promise<void> {
  const folder = makeTemporaryFolder('hypercube-bench-');
  pinSelf(CLIENT_CORE);
  process.stdout.write(`TLS and API keys: CPU time per request of ${ROWS} rows, over HTTP.\n`);
  let service: Service | undefined;
  try {
    await publishModel(folder, 2);
    const { cert, key } = new CertificateAuthority(folder, 'authority').issue({ name: 'bench' });
    const made = generateKey();
    const createdAt = new Date().toISOString();
    const limits = { rowsPerSecond: 1e9, requestsPerSecond: 1e9 };
    const own = { id: 'bench', scopes: ['predict'], limits, createdAt, ...made.secret };
    const keyFile = join(folder, 'keys.json');
    replaceFile(keyFile, formatKeyFile({ keys: [own] }));
    const open = ['--key-file', keyFile, '--anonymous-scopes', 'predict,metrics'];
    const tls = ['--tls-cert', cert, '--tls-key', key];
    service = await startServing(folder, ['--store', 'memory', ...open, ...tls]);
    const authorization = `Bearer ${made.key}`;
    const callers: readonly Caller[] = [
      { name: 'in clear', isSecure: false, headers: {} },
      { name: 'in clear, with a key', isSecure: false, headers: { authorization } },
      { name: 'TLS', isSecure: true, headers: {} },
      { name: 'TLS, with a key', isSecure: true, headers: { authorization } },
    ];
    const results = await measure(service, callers, readBodies(folder, ROWS).slice(0, 100));
    const [clear = []] = results;
    callers.forEach(({ name }, i) => {
      const own = results[i] ?? [];
      const ratio = median(own.map((seconds, round) => (clear[round] ?? 0) / seconds));
      const micros = (1e6 * median(own)).toFixed(0);
      const text = `${micros} µs of CPU, ${(100 * ratio).toFixed(1)} % of the throughput in clear`;
      process.stdout.write(`${name.padEnd(24)}${text}\n`);
    });
  } finally {
    await service?.stop();
    removePath(folder);
  }
}

if (import.meta.url === pathToFileURL(process.argv[1] ?? '').href) await main();
