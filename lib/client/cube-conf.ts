/**
 * cube.conf, the client configuration of the original Cube: a JSON array of dicts. Each dict
 * becomes a bundle of a fleet at one shard count, with its own call policy. The names of its
 * servers are resolved again while they change; the file itself is read once, as Cube does.
 */
import { CubeError } from '../core/errors.ts';
import type { Fleet, Replica } from '../core/fleet.ts';
import { JsonReader } from '../core/json.ts';
import { type Clock, systemClock } from '../platform/clock.ts';
import { readText } from '../platform/files.ts';
import { formatEndpoint } from '../rpc/endpoint.ts';
import { type CallPolicy, LOAD_BALANCERS, type LoadBalancer } from './call-policy.ts';
import {
  type NamedServer,
  type NamingOptions,
  type NamingService,
  openNamingService,
} from './naming.ts';

const CONF_BYTES_MAX = 16 << 20;
const NAMES_INTERVAL_MS = 500;
/** What Cube's own client reads; anything else has no effect there or here. */
const DICT_FIELDS = [
  'dict_name',
  'shard',
  'dup',
  'timeout',
  'retry',
  'backup_request',
  'type',
  'load_balancer',
  'nodes',
];
const NODE_FIELDS = ['ip', 'port', 'ipport_list'];
const DICTS_MAX = 10_000;
const SHARDS_MAX = 65_536;

export interface CubeConfOptions extends Omit<NamingOptions, 'onInvalid' | 'weighted'> {
  /** Called when a name can no longer be resolved; its previous servers stay. */
  readonly onInvalid?: (error: CubeError) => void;
}

interface DictConfig {
  readonly name: string;
  readonly policy: CallPolicy;
  /** Index = shard. */
  readonly namings: readonly NamingService[];
}

export class CubeConf {
  readonly path: string;
  readonly #dicts: readonly DictConfig[];
  readonly #clock: Clock;
  #servers: readonly (readonly NamedServer[])[] = [];
  #fleet: Fleet = { bundles: new Map() };
  #checkAtMs = Number.NEGATIVE_INFINITY;

  private constructor(path: string, dicts: readonly DictConfig[], clock: Clock) {
    this.path = path;
    this.#dicts = dicts;
    this.#clock = clock;
  }

  /** @throws CubeError when the file, or a name in it, cannot be read */
  static async open(path: string, options: CubeConfOptions = {}): Promise<CubeConf> {
    const json = JsonReader.parse(readText(path, CONF_BYTES_MAX), path);
    const dicts: DictConfig[] = [];
    for (const item of json.items({ min: 1, max: DICTS_MAX })) {
      const dict = await readDict(item, options);
      if (dicts.some(({ name }) => name === dict.name)) {
        item.field('dict_name').fail('a name that no other dict has');
      }
      dicts.push(dict);
    }
    return new CubeConf(path, dicts, options.clock ?? systemClock);
  }

  get dictNames(): string[] {
    return this.#dicts.map(({ name }) => name);
  }

  /** Options for a client: `new CubeDictClient({ ...conf.routeOptions })`. */
  get routeOptions(): { fleet: () => Fleet; policy: (dict: string) => CallPolicy } {
    return { fleet: () => this.fleet(), policy: (dict) => this.getPolicy(dict) };
  }

  /**
   * Returns the dicts as bundles, with their current servers: the same object while those are
   * unchanged.
   */
  fleet(): Fleet {
    const nowMs = this.#clock.nowMs();
    if (nowMs < this.#checkAtMs) return this.#fleet;
    this.#checkAtMs = nowMs + NAMES_INTERVAL_MS;
    const servers = this.#dicts.flatMap(({ namings }) => namings.map((naming) => naming.servers()));
    if (servers.length === this.#servers.length && servers.every((s, i) => s === this.#servers[i]))
      return this.#fleet;
    this.#servers = servers;
    const bundles = this.#dicts.map(({ name, namings }) => {
      const shards = namings.map((naming) => naming.servers().map(toReplica));
      return [name, [{ shardNum: shards.length, shards }]] as const;
    });
    this.#fleet = { bundles: new Map(bundles) };
    return this.#fleet;
  }

  /** @throws CubeError NOT_FOUND */
  getPolicy(dict: string): CallPolicy {
    const found = this.#dicts.find(({ name }) => name === dict);
    if (found !== undefined) return found.policy;
    throw new CubeError(
      'NOT_FOUND',
      `${this.path} has no dict ${JSON.stringify(dict)} (it has: ${this.dictNames.join(', ')})`,
    );
  }
}

function toReplica({ endpoint, weight }: NamedServer): Replica {
  return { data: endpoint, control: endpoint, group: 'default', weight };
}

/** Whether a file is a cube.conf, an array; a fleet.json is an object. */
export function isCubeConf(text: string): boolean {
  return text.trimStart().startsWith('[');
}

/**
 * Fields of a cube.conf that have no effect, each with its place.
 * @throws CubeError when the text is not JSON
 */
export function listUnknownCubeConfFields(text: string, source: string): string[] {
  return JsonReader.parse(text, source)
    .items({ max: DICTS_MAX })
    .flatMap((dict) => [
      ...dict.listUnknownFields(DICT_FIELDS),
      ...(dict.optional('nodes', (f) => f.items({ max: SHARDS_MAX })) ?? []).flatMap((node) =>
        node.listUnknownFields(NODE_FIELDS),
      ),
    ]);
}

async function readDict(json: JsonReader, options: CubeConfOptions): Promise<DictConfig> {
  const name = json.field('dict_name').string(/^.+$/s, 'a name');
  const shardNum = json.field('shard').integer(1, SHARDS_MAX);
  json.field('dup').integer(0);
  const timeoutMs = json.field('timeout').integer(1, 0x7fff_ffff);
  const retryMax = json.field('retry').integer(0, 1_000);
  const backupMs = json.field('backup_request').integer(-1, 0x7fff_ffff);
  const type = json.field('type').choice(['ipport', 'ipport_list', 'ipport_parallel'] as const);
  const loadBalancer = type === 'ipport_list' ? readBalancer(json) : 'rr';
  const policy: CallPolicy = {
    loadBalancer,
    retryMax,
    timeoutMs,
    backupRequest: backupMs > 0 ? backupMs : 'never',
  };
  const weighted = loadBalancer === 'wrr' || loadBalancer === 'wr';
  const namings: NamingService[] = [];
  for (const node of readNodes(json, name, shardNum, type)) {
    namings.push(
      await readNode(node, type, {
        onInvalid: () => undefined,
        ...options,
        requireWeights: weighted,
      }),
    );
  }
  // All shards of ipport_parallel share its one node.
  const [first] = namings;
  if (type !== 'ipport_parallel' || first === undefined) return { name, policy, namings };
  return { name, policy, namings: Array<NamingService>(shardNum).fill(first) };
}

/** Returns one node per shard; for `ipport_parallel` the first node, which all shards share. */
function readNodes(json: JsonReader, name: string, shardNum: number, type: string): JsonReader[] {
  const nodes = json.field('nodes');
  const items = nodes.items({ max: SHARDS_MAX });
  if (type === 'ipport_parallel') {
    if (items.length === 0) nodes.fail(`a node, which all ${shardNum} shards of ${name} share`);
    return items.slice(0, 1);
  }
  if (items.length !== shardNum) {
    nodes.fail(`${shardNum} nodes, one for each shard of ${name} (they are ${items.length})`);
  }
  return items;
}

async function readNode(
  json: JsonReader,
  type: string,
  options: NamingOptions,
): Promise<NamingService> {
  const list = type === 'ipport' ? undefined : json.field('ipport_list');
  if (list !== undefined && !(type === 'ipport_parallel' && list.isMissing)) {
    const name = list.string();
    try {
      return await openNamingService(name, options);
    } catch (error) {
      const { code, message } = CubeError.from(error);
      // The file that a name refers to, or the name itself, is invalid: both belong to this field.
      if (code === 'INVALID_ARGUMENT') list.fail(`names of servers (${message})`);
      throw error;
    }
  }
  const ip = json.field('ip').string(/^[^\s,:]+$|^[0-9a-fA-F:]+$/, 'an address');
  const endpoint = formatEndpoint(ip, json.field('port').integer(1, 65_535));
  return openNamingService(`list://${endpoint}`, options);
}

function readBalancer(json: JsonReader): LoadBalancer {
  return json.optional('load_balancer', (field) => field.choice(LOAD_BALANCERS)) ?? 'rr';
}
