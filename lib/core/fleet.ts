/**
 * The fleet: for each bundle and shard count, which replicas serve which shard. Clients, agents and
 * rollouts read the same file. Routing uses the shard count of the pinned manifest, so that two
 * shard counts can coexist while a table is resharded. JSON Schema: docs/schemas/fleet.schema.json.
 */
import { CubeError } from './errors.ts';
import { JsonReader } from './json.ts';
import { NAME_PATTERN, NAME_RULE } from './names.ts';

/** One cube-server process. `data` and `control` are host:port and may be equal (one port). */
export interface Replica {
  readonly data: string;
  readonly control: string;
  /** Rack or zone, for display only: no decision depends on it. Default "default". */
  readonly group: string;
  /** host:port of the agent on the replica's host; absent: no agent is asked. */
  readonly agent?: string;
  /** Share of the load under the balancers wrr and wr. Default 1. */
  readonly weight?: number;
}

const WEIGHT_MAX = 10_000;

export interface ShardMap {
  readonly shardNum: number;
  /** Index = shard; each has at least one replica. */
  readonly shards: readonly (readonly Replica[])[];
}

export interface Fleet {
  readonly bundles: ReadonlyMap<string, readonly ShardMap[]>;
}

const ENDPOINT = /^(\[[0-9a-fA-F:]+\]|[A-Za-z0-9.-]+):([1-9]\d{0,4})$/;

function readEndpoint(json: JsonReader): string {
  const text = json.string(ENDPOINT, 'host:port');
  if (Number(ENDPOINT.exec(text)?.[2]) > 65_535) json.fail('a port up to 65535');
  return text;
}

function readReplica(json: JsonReader): Replica {
  json.rejectUnknownFields(['data', 'control', 'group', 'agent', 'weight']);
  const data = readEndpoint(json.field('data'));
  const agent = json.optional('agent', readEndpoint);
  const weight = json.optional('weight', (f) => f.integer(1, WEIGHT_MAX));
  return {
    data,
    control: json.optional('control', readEndpoint) ?? data,
    group: json.optional('group', (f) => f.string(NAME_PATTERN, NAME_RULE)) ?? 'default',
    ...(agent === undefined ? {} : { agent }),
    ...(weight === undefined ? {} : { weight }),
  };
}

function readShardMap(json: JsonReader): ShardMap {
  json.rejectUnknownFields(['shardNum', 'shards']);
  const shardNum = json.field('shardNum').integer(1, 65_536);
  return {
    shardNum,
    shards: json
      .field('shards')
      .items({ min: shardNum, max: shardNum })
      .map((replicas) => replicas.items({ min: 1, max: 1000 }).map(readReplica)),
  };
}

/** Reads fleet.json. @throws CubeError INVALID_ARGUMENT naming the field */
export function parseFleet(text: string, source: string): Fleet {
  const json = JsonReader.parseFile(text, source);
  json.field('format').integer(1, 1);
  json.rejectUnknownFields(['$schema', 'format', 'bundles']);
  const bundles = new Map<string, ShardMap[]>();
  for (const [bundle, maps] of json.field('bundles').entries()) {
    if (!NAME_PATTERN.test(bundle)) maps.fail(NAME_RULE);
    bundles.set(bundle, maps.items({ min: 1, max: 100 }).map(readShardMap));
  }
  return { bundles };
}

export function formatFleet(fleet: Fleet): string {
  const bundles = Object.fromEntries(fleet.bundles);
  return `${JSON.stringify({ format: 1, bundles }, null, 2)}\n`;
}

/** @throws CubeError NOT_FOUND when the fleet has no servers for this bundle and shard count */
export function findShardMap(fleet: Fleet, bundle: string, shardNum: number): ShardMap {
  const maps = fleet.bundles.get(bundle);
  const map = maps?.find((candidate) => candidate.shardNum === shardNum);
  if (map !== undefined) return map;
  const known = maps?.map((candidate) => candidate.shardNum).join(', ') ?? 'none';
  throw new CubeError(
    'NOT_FOUND',
    `the fleet has no ${shardNum}-shard servers for bundle ${bundle} ` +
      `(known shard counts: ${known})`,
  );
}
