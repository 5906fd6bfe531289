/**
 * Naming services in brpc's notation, which list the replicas of a shard: `list://a:1,b:2`,
 * `file://path` (one server per line) and `dns://host:port` (every address of the host). A file or
 * host is read again when the servers are requested and the last check is old enough; no timer
 * keeps the process alive.
 */
import { lookup } from 'node:dns/promises';
import { CubeError } from '../core/errors.ts';
import { type Clock, systemClock } from '../platform/clock.ts';
import { readText } from '../platform/files.ts';
import { RereadValue } from '../platform/reread-value.ts';
import { formatEndpoint, parseEndpoint } from '../rpc/endpoint.ts';

const FILE_INTERVAL_MS = 1_000;
/** brpc's interval for names that must be resolved. */
const DNS_INTERVAL_MS = 5_000;
const FILE_BYTES_MAX = 16 << 20;
const SERVERS_MAX = 1_000;
const WEIGHT_MAX = 10_000;

/** A server and its tag. */
export interface NamedServer {
  /** host:port */
  readonly endpoint: string;
  /** The tag as a number; 1 without one. */
  readonly weight: number;
}

export interface NamingService {
  /** Returns the servers as of the last check: the same array while they are unchanged. */
  servers(): readonly NamedServer[];
}

export interface NamingOptions {
  readonly clock?: Clock;
  /** Called when a file or host can no longer be read; the previous servers stay. */
  readonly onInvalid: (error: CubeError) => void;
  /** Returns the addresses of a host; default: the system's resolver. */
  readonly resolve?: (host: string) => Promise<readonly string[]>;
  /** Reject tags that are not weights, because the load balancer needs them. */
  readonly requireWeights?: boolean;
}

/**
 * @throws CubeError INVALID_ARGUMENT for an invalid name, NOT_FOUND or UNAVAILABLE when it cannot
 *   be read
 */
export async function openNamingService(
  name: string,
  options: NamingOptions,
): Promise<NamingService> {
  const [, scheme = '', rest = ''] = /^(\w+):\/\/(.*)$/s.exec(name.trim()) ?? [];
  if (scheme === 'list') return new ListNaming(parseServers(rest.split(','), name, options));
  if (scheme === 'file') return new FileNaming(rest, options);
  // http is brpc's older name for dns.
  if (scheme === 'dns' || scheme === 'http') return DnsNaming.open(rest, options);
  throw new CubeError(
    'INVALID_ARGUMENT',
    'naming: expected list://host:port,…, file://path or dns://host:port, ' +
      `got ${JSON.stringify(name)}`,
  );
}

/** @throws CubeError INVALID_ARGUMENT naming the endpoint */
export function listServers(endpoints: readonly string[], source: string): NamingService {
  return new ListNaming(parseServers(endpoints, source, {}));
}

class ListNaming implements NamingService {
  readonly #servers: readonly NamedServer[];

  constructor(servers: readonly NamedServer[]) {
    this.#servers = servers;
  }

  servers(): readonly NamedServer[] {
    return this.#servers;
  }
}

/**
 * One `host:port [weight]` per line; `#` begins a comment. Relative paths start at the current
 * folder, as in brpc.
 */
class FileNaming implements NamingService {
  readonly #servers: RereadValue<readonly NamedServer[]>;

  constructor(path: string, options: NamingOptions) {
    this.#servers = new RereadValue({
      paths: [path],
      read: () => parseServers(readText(path, FILE_BYTES_MAX).split('\n'), path, options),
      intervalMs: FILE_INTERVAL_MS,
      clock: options.clock ?? systemClock,
      onInvalid: (error) => options.onInvalid(error),
    });
  }

  servers(): readonly NamedServer[] {
    return this.#servers.current;
  }
}

class DnsNaming implements NamingService {
  readonly #host: string;
  readonly #port: number;
  readonly #options: NamingOptions;
  readonly #clock: Clock;
  #servers: readonly NamedServer[] = [];
  #resolveAtMs = 0;
  #failed = false;

  private constructor(address: string, options: NamingOptions) {
    const { host, port } = parseEndpoint(address.replace(/\/$/, ''));
    this.#host = host;
    this.#port = port;
    this.#options = options;
    this.#clock = options.clock ?? systemClock;
  }

  static async open(address: string, options: NamingOptions): Promise<DnsNaming> {
    const naming = new DnsNaming(address, options);
    await naming.#resolve();
    return naming;
  }

  servers(): readonly NamedServer[] {
    if (this.#clock.nowMs() >= this.#resolveAtMs) {
      this.#resolve().then(
        () => {
          this.#failed = false;
        },
        (error: unknown) => {
          if (!this.#failed) this.#options.onInvalid(CubeError.from(error));
          this.#failed = true;
        },
      );
    }
    return this.#servers;
  }

  async #resolve(): Promise<void> {
    this.#resolveAtMs = this.#clock.nowMs() + DNS_INTERVAL_MS;
    const host = this.#host;
    let addresses: readonly string[];
    try {
      addresses = await (this.#options.resolve ?? resolveHost)(host);
    } catch (error) {
      const text = `cannot resolve ${host}: ${(error as Error).message}`;
      throw new CubeError('UNAVAILABLE', text, { cause: error });
    }
    if (addresses.length === 0) throw new CubeError('UNAVAILABLE', `${host} has no address`);
    const endpoints = addresses.map((address) => formatEndpoint(address, this.#port));
    const distinct = [...new Set(endpoints)].sort().slice(0, SERVERS_MAX);
    const unchanged =
      distinct.length === this.#servers.length &&
      distinct.every((endpoint, i) => endpoint === this.#servers[i]!.endpoint);
    if (!unchanged) this.#servers = distinct.map((endpoint) => ({ endpoint, weight: 1 }));
  }
}

async function resolveHost(host: string): Promise<string[]> {
  const addresses = await lookup(host, { all: true });
  return addresses.map(({ address }) => address);
}

/** @throws CubeError INVALID_ARGUMENT naming the entry */
function parseServers(
  lines: readonly string[],
  source: string,
  { requireWeights = false }: Pick<NamingOptions, 'requireWeights'>,
): readonly NamedServer[] {
  const servers = new Map<string, NamedServer>();
  lines.forEach((line, i) => {
    const [endpoint, tag] = line.replace(/#.*/s, '').trim().split(/\s+/);
    if (endpoint === undefined || endpoint === '') return;
    try {
      parseEndpoint(endpoint);
    } catch (error) {
      const text = `${source}: server ${i + 1}: ${(error as Error).message}`;
      throw new CubeError('INVALID_ARGUMENT', text);
    }
    const weight = /^[1-9]\d{0,4}$/.test(tag ?? '1') ? Math.min(Number(tag ?? 1), WEIGHT_MAX) : 0;
    if (weight === 0 && requireWeights) {
      throw new CubeError(
        'INVALID_ARGUMENT',
        `${source}: server ${i + 1}: expected a weight in 1 … ${WEIGHT_MAX}, ` +
          `got ${JSON.stringify(tag)}`,
      );
    }
    if (!servers.has(endpoint)) servers.set(endpoint, { endpoint, weight: Math.max(weight, 1) });
  });
  if (servers.size === 0 || servers.size > SERVERS_MAX) {
    const text = `${source}: expected 1 to ${SERVERS_MAX} servers, got ${servers.size}`;
    throw new CubeError('INVALID_ARGUMENT', text);
  }
  return [...servers.values()];
}
