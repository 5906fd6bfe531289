/**
 * Cube's own configuration of its clients, cube.conf, as it is: a JSON array of dicts. Each becomes a bundle of a fleet at one shard
 * count, with a policy of its own; names in it are followed while they change. The file itself is read once, as Cube does.
 */
import { CubeError } from '../core/errors.ts';
import type { Fleet, Replica } from '../core/fleet.ts';
import { JsonReader } from '../core/json.ts';
import { type Clock, systemClock } from '../platform/clock.ts';
import { readText } from '../platform/files.ts';
import { formatEndpoint } from '../rpc/endpoint.ts';
import { type CallPolicy, LOAD_BALANCERS, type LoadBalancer } from './call-policy.ts';
import { type NamedServer, type Naming, type NamingOptions, openNaming } from './naming.ts';

const CONF_BYTES_MAX = 16 << 20;
const NAMES_INTERVAL_MS = 500;
const DICTS_MAX = 10_000;
const SHARDS_MAX = 65_536;

export interface CubeConfOptions extends Omit<NamingOptions, 'onInvalid' | 'weighted'> {
  /** Told when a name that was followed cannot be any more; what it named before stays. Default: nobody. */
  readonly onInvalid?: (error: CubeError) => void;
}

interface Dict {
  readonly name: string;
  readonly policy: CallPolicy;
  /** Index = shard. */
  readonly namings: readonly Naming[];
}

export class CubeConf {
  readonly path: string;
  readonly #dicts: readonly Dict[];
  readonly #clock: Clock;
  #servers: readonly (readonly NamedServer[])[] = [];
  #fleet: Fleet = { bundles: new Map() };
  #checkAtMs = Number.NEGATIVE_INFINITY;

  private constructor(path: string, dicts: readonly Dict[], clock: Clock) {
    this.path = path;
    this.#dicts = dicts;
    this.#clock = clock;
  }

  /** @throws CubeError when the file, or a name in it, cannot be read now */
  static async open(path: string, options: CubeConfOptions = {}): Promise<CubeConf> {
    const json = JsonReader.parse(readText(path, CONF_BYTES_MAX), path);
    const dicts: Dict[] = [];
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

  /** For the options of a client: `new CubeDictClient({ ...conf.routes })`. */
  get routes(): { fleet: () => Fleet; policy: (dict: string) => CallPolicy } {
    return { fleet: () => this.fleet(), policy: (dict) => this.policyOf(dict) };
  }

  /** The dicts as bundles, as their names say now: the same object while that is unchanged. */
  fleet(): Fleet {
    const nowMs = this.#clock.nowMs();
    if (nowMs < this.#checkAtMs) return this.#fleet;
    this.#checkAtMs = nowMs + NAMES_INTERVAL_MS;
    const servers = this.#dicts.flatMap(({ namings }) => namings.map((naming) => naming.servers()));
    if (servers.length === this.#servers.length && servers.every((s, i) => s === this.#servers[i]))
      return this.#fleet;
    this.#servers = servers;
    const bundles = this.#dicts.map(({ name, namings }) => {
      const shards = namings.map((naming) => naming.servers().map(asReplica));
      return [name, [{ shardNum: shards.length, shards }]] as const;
    });
    this.#fleet = { bundles: new Map(bundles) };
    return this.#fleet;
  }

  /** @throws CubeError NOT_FOUND */
  policyOf(dict: string): CallPolicy {
    const found = this.#dicts.find(({ name }) => name === dict);
    if (found !== undefined) return found.policy;
    throw new CubeError(
      'NOT_FOUND',
      `${this.path} has no dict ${JSON.stringify(dict)} (it has: ${this.dictNames.join(', ')})`,
    );
  }
}

function asReplica({ endpoint, weight }: NamedServer): Replica {
  return { data: endpoint, control: endpoint, group: 'default', weight };
}

async function readDict(json: JsonReader, options: CubeConfOptions): Promise<Dict> {
  const name = json.field('dict_name').string(/^.+$/s, 'a name');
  const shardNum = json.field('shard').integer(1, SHARDS_MAX);
  json.field('dup').integer(0);
  const timeoutMs = json.field('timeout').integer(1, 0x7fff_ffff);
  const retryMax = json.field('retry').integer(0, 1_000);
  const backupMs = json.field('backup_request').integer(-1, 0x7fff_ffff);
  const type = json.field('type').oneOf(['ipport', 'ipport_list', 'ipport_parallel'] as const);
  const loadBalancer = type === 'ipport_list' ? readBalancer(json) : 'rr';
  const policy: CallPolicy = {
    ...{ loadBalancer, retryMax, timeoutMs },
    ...(backupMs > 0 ? { backupRequest: backupMs } : {}),
  };
  const weighted = loadBalancer === 'wrr' || loadBalancer === 'wr';
  const namings: Naming[] = [];
  for (const node of readNodes(json, name, shardNum, type)) {
    namings.push(await readNode(node, type, { onInvalid: () => undefined, ...options, weighted }));
  }
  const [first] = namings;
  const shards = type === 'ipport_parallel' ? Array<Naming>(shardNum).fill(first!) : namings;
  return { name, policy, namings: shards };
}

/** As many nodes as shards; of `ipport_parallel` the first, which all shards share. */
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

async function readNode(json: JsonReader, type: string, options: NamingOptions): Promise<Naming> {
  const list = type === 'ipport' ? undefined : json.field('ipport_list');
  if (list !== undefined && !(type === 'ipport_parallel' && list.missing)) {
    const name = list.string();
    try {
      return await openNaming(name, options);
    } catch (error) {
      const { code, message } = CubeError.from(error);
      // The file that a name leads to, or the name itself: both stand in this field.
      if (code === 'INVALID_ARGUMENT') list.fail(`names of servers (${message})`);
      throw error;
    }
  }
  const ip = json.field('ip').string(/^[^\s,:]+$|^[0-9a-fA-F:]+$/, 'an address');
  const endpoint = formatEndpoint(ip, json.field('port').integer(1, 65_535));
  return openNaming(`list://${endpoint}`, options);
}

function readBalancer(json: JsonReader): LoadBalancer {
  return json.optional('load_balancer', (field) => field.oneOf(LOAD_BALANCERS)) ?? 'rr';
}
