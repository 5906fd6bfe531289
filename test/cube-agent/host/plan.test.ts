/** The plan in a simulated world in which every action succeeds. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import fc from 'fast-check';
import {
  type DesiredVersions,
  type DiskAction,
  EMPTY_PLAN,
  type Plan,
  type PlanInput,
  plan,
  type ServerAction,
  type ServerState,
  toLayerName,
} from '../../../cube-agent/host/plan.ts';
import type { Manifest } from '../../../lib/core/manifest.ts';

const GRACE_MS = 1000;
const ROUNDS_MAX = 12;

/**
 * Version "n" of `shardNum` shards: table "shared" has the same layers in versions of one shard
 * count, "own" has not.
 */
function createManifest(version: string, shardNum: number): Manifest {
  const table = (name: string, tag: string) => ({
    name,
    dim: 1,
    dtype: 'f32' as const,
    rows: shardNum,
    defaultRow: [],
    shardNum,
    shards: Array.from({ length: shardNum }, (_, shard) => [
      {
        contentId: `${tag}-${shardNum}-${shard}`,
        kind: 'base' as const,
        bytes: 1,
        sha256: '',
        rows: 1,
      },
    ]),
  });
  return {
    bundle: 'ctr',
    version,
    files: [],
    hash: { scheme: 'raw', seed: 0n, modulo: 0n },
    slots: [],
    tables: [table('shared', 'same'), table('own', version)],
  };
}

const VERSIONS = ['1', '2', '3', '4'];
/** Versions 1 to 3 have two shards, version 4 has three: a reshard. */
const shardNumOfVersion = (version: string): number => (version === '4' ? 3 : 2);
const MANIFESTS = new Map(VERSIONS.map((v) => [v, createManifest(v, shardNumOfVersion(v))]));

function listLayers(version: string, shards: readonly number[]): string[] {
  const tables = MANIFESTS.get(version)?.tables ?? [];
  return tables.flatMap((table) =>
    shards.flatMap((shard) =>
      (table.shards[shard] ?? []).map((layer) => toLayerName(table.name, layer.contentId)),
    ),
  );
}

const version = fc.constantFrom(...VERSIONS);
const server = fc
  .record({
    shardNum: fc.constantFrom(2, 3),
    shard: fc.nat(),
    isCurrent: fc.boolean(),
    loaded: fc.uniqueArray(
      fc.record({ version, idleMs: fc.constantFrom(0, GRACE_MS - 1, GRACE_MS, 10 * GRACE_MS) }),
      { selector: (entry) => entry.version, maxLength: 3 },
    ),
    active: fc.nat(),
    loading: fc.uniqueArray(version, { maxLength: 1 }),
  })
  .map(({ shardNum, shard, isCurrent, loaded, active, loading }) => {
    const own = loaded.filter((h) => shardNumOfVersion(h.version) === shardNum);
    return {
      shardIndex: shard % shardNum,
      shardNum,
      isCurrent,
      loaded: own,
      active: own[active % (own.length + 1)]?.version,
      loading: loading.filter(
        (v) => shardNumOfVersion(v) === shardNum && !own.some((h) => h.version === v),
      ),
    };
  });

const inputs: fc.Arbitrary<PlanInput> = fc
  .record({
    servers: fc.array(server, { maxLength: 4 }),
    desired: fc.option(
      fc.record({
        pointer: fc.option(version, { nil: undefined, freq: 10 }),
        previous: fc.option(version, { nil: undefined }),
        quarantined: fc.uniqueArray(version, { maxLength: 2 }),
        loadOnly: fc.uniqueArray(version, { maxLength: 2 }),
        history: fc.uniqueArray(version),
      }),
      { nil: undefined, freq: 10 },
    ),
    unreadable: fc.option(version, { nil: undefined, freq: 3 }),
    staged: fc.uniqueArray(version),
    complete: fc.uniqueArray(version),
    parts: fc.uniqueArray(version),
    allServersSeen: fc.boolean(),
    allChannelsRead: fc.boolean(),
    retention: fc.record({
      maxVersions: fc.integer({ min: 0, max: 4 }),
      maxBytes: fc.constantFrom(0, 4, 1e9),
    }),
  })
  .map(({ servers, desired, unreadable, staged, complete, parts, ...more }) => ({
    ...more,
    servers: servers.map((state, i) => ({ ...state, address: `host:${i}` })),
    desired: desired && goodWanted(desired),
    manifests: new Map([...MANIFESTS].filter(([v]) => v !== unreadable)),
    disk: {
      versions: new Set(staged.filter((v) => v !== unreadable)),
      layers: new Set(complete.flatMap((v) => listLayers(v, [0, 1]))),
      partialLayers: new Set(parts.flatMap((v) => listLayers(v, [0]))),
    },
    retireGraceMs: GRACE_MS,
  }));

/** As computeChannelState gives it: previous is another version, and a good one. */
function goodWanted(
  w: Omit<DesiredVersions, 'quarantined'> & { quarantined: string[] },
): DesiredVersions {
  const quarantined = new Set(w.quarantined);
  const bad =
    w.pointer === undefined ||
    w.previous === w.pointer ||
    (w.previous !== undefined && quarantined.has(w.previous));
  return { ...w, previous: bad ? undefined : w.previous, quarantined };
}

function carryOut(input: PlanInput, { disk, servers }: Plan): PlanInput {
  const afterDisk = disk.reduce(onDisk, input);
  return {
    ...afterDisk,
    servers: afterDisk.servers.map((s) =>
      servers.filter((a) => a.server === s.address).reduce(onServer, s),
    ),
  };
}

function onDisk(input: PlanInput, action: DiskAction): PlanInput {
  const versions = new Set(input.disk.versions);
  const layers = new Set(input.disk.layers);
  const parts = new Set(input.disk.partialLayers);
  if (action.kind === 'stage') versions.add(action.version);
  else if (action.kind === 'remove-version') versions.delete(action.version);
  else if (action.kind === 'remove-layer') {
    layers.delete(action.layer);
    parts.delete(action.layer);
  } else {
    const name = toLayerName(action.table, action.layer.contentId);
    layers.add(name);
    parts.delete(name);
  }
  return { ...input, disk: { versions, layers, partialLayers: parts } };
}

function onServer(state: ServerState, { kind, version: v }: ServerAction): ServerState {
  const others = state.loaded.filter((held) => held.version !== v);
  if (kind === 'activate') return { ...state, active: v };
  if (kind === 'unload') return { ...state, loaded: others };
  return { ...state, loaded: [...others, { version: v, idleMs: 0 }] };
}

/**
 * Carries out plans until they are empty. Loads in progress end first, and every server answers.
 */
function settle(input: PlanInput): PlanInput {
  let current = input;
  for (let round = 0; round < ROUNDS_MAX; round++) {
    const next = plan(current);
    if (next.disk.length === 0 && next.servers.length === 0) return current;
    current = carryOut(current, next);
  }
  throw new Error(`not settled after ${ROUNDS_MAX} rounds: ${JSON.stringify(plan(current))}`);
}

const calm = (input: PlanInput): PlanInput => ({
  ...input,
  servers: input.servers.map((state) => ({ ...state, loading: [], isCurrent: true })),
});

test('carrying out plans ends with an empty plan', () => {
  fc.assert(
    fc.property(inputs, (input) => {
      assert.deepEqual(plan(settle(input)), EMPTY_PLAN);
    }),
    { numRuns: 1000 },
  );
});

test('a plan is idempotent', () => {
  fc.assert(
    fc.property(inputs, (input) => {
      const next = plan(input);
      const once = carryOut(input, next);
      assert.deepEqual(carryOut(once, next), once);
    }),
  );
});

test('every capable server ends with the desired versions and the pointer active', () => {
  fc.assert(
    fc.property(inputs, (input) => {
      const { desired, servers, manifests } = settle(calm(input));
      if (desired === undefined) return;
      const { pointer, previous, loadOnly, quarantined } = desired;
      const isGood = (v: string | undefined): boolean =>
        v !== undefined && !quarantined.has(v) && manifests.has(v);
      for (const state of servers) {
        const fits = (v: string | undefined) => shardNumOfVersion(v ?? '') === state.shardNum;
        const fitting = [pointer, previous].filter((v) => isGood(v) && fits(v));
        for (const v of [...fitting, ...loadOnly.filter((v) => isGood(v) && fits(v))]) {
          assert.ok(state.loaded.some((held) => held.version === v));
        }
        if (fitting.length > 0 && fitting[0] === pointer) assert.equal(state.active, pointer);
        else if (fitting.length > 0) {
          assert.ok(state.active !== undefined && !quarantined.has(state.active));
        }
      }
    }),
    { numRuns: 1000 },
  );
});

test('only loaded, desired, unquarantined versions are activated; only staged are loaded', () => {
  fc.assert(
    fc.property(inputs, (input) => {
      for (const action of plan(input).servers) {
        const state = input.servers.find(({ address }) => address === action.server);
        assert.ok(state?.isCurrent && input.desired !== undefined);
        const { pointer, previous, loadOnly, quarantined } = input.desired;
        if (action.kind === 'unload') continue;
        const mayLoad = [pointer, previous, ...(action.kind === 'load' ? loadOnly : [])];
        assert.ok(mayLoad.includes(action.version));
        assert.ok(!quarantined.has(action.version));
        assert.equal(shardNumOfVersion(action.version), state.shardNum);
        if (action.kind === 'activate') {
          assert.ok(state.loaded.some((held) => held.version === action.version));
          const { active } = state;
          const isAway = active === undefined || quarantined.has(active);
          if (action.version === previous) assert.ok(isAway);
        } else {
          assert.ok(input.disk.versions.has(action.version));
          for (const layer of listLayers(action.version, [state.shardIndex])) {
            assert.ok(input.disk.layers.has(layer));
          }
        }
      }
    }),
    { numRuns: 2000 },
  );
});

test('a version that is active, desired or recently used is not unloaded', () => {
  fc.assert(
    fc.property(inputs, (input) => {
      for (const { kind, server: address, version: v } of plan(input).servers) {
        if (kind !== 'unload') continue;
        const state = input.servers.find((s) => s.address === address);
        const held = state?.loaded.find((h) => h.version === v);
        assert.ok(held !== undefined && held.idleMs >= GRACE_MS);
        assert.notEqual(v, state?.active);
        assert.ok(input.allChannelsRead);
        const { desired } = input;
        const isWanted =
          v === desired?.pointer || v === desired?.previous || desired?.loadOnly.includes(v);
        assert.ok(!isWanted || desired?.quarantined.has(v));
      }
    }),
    { numRuns: 2000 },
  );
});

test('files of loaded, loading or desired versions are not removed', () => {
  fc.assert(
    fc.property(inputs, (input) => {
      const removals = plan(input).disk.filter(({ kind }) => kind.startsWith('remove'));
      if (removals.length === 0) return;
      assert.ok(input.allServersSeen && input.allChannelsRead && input.desired !== undefined);
      const { pointer, previous, loadOnly, quarantined } = input.desired;
      const needed = new Set(
        [pointer, previous, ...loadOnly].filter(
          (v): v is string => v !== undefined && !quarantined.has(v),
        ),
      );
      for (const { loaded, loading, active } of input.servers) {
        for (const v of [...loaded.map((h) => h.version), ...loading]) needed.add(v);
        if (active !== undefined) needed.add(active);
      }
      const layers = new Set([...needed].flatMap((v) => listLayers(v, [0, 1, 2])));
      for (const action of removals) {
        if (action.kind === 'remove-version') assert.ok(!needed.has(action.version));
        if (action.kind === 'remove-layer') assert.ok(!layers.has(action.layer));
      }
    }),
    { numRuns: 2000 },
  );
});

test('nothing is planned while no channel points to a version', () => {
  fc.assert(
    fc.property(inputs, (input) => {
      assert.deepEqual(plan({ ...input, desired: undefined }), EMPTY_PLAN);
    }),
  );
});

const idle = (state: Partial<ServerState>): ServerState => ({
  address: 'host:0',
  shardIndex: 0,
  shardNum: 2,
  active: undefined,
  loaded: [],
  loading: [],
  isCurrent: true,
  ...state,
});

const at = (pointer: string, previous: string | undefined, servers: ServerState[]): PlanInput => ({
  desired: { pointer, previous, loadOnly: [], history: [], quarantined: new Set() },
  allChannelsRead: true,
  retention: { maxVersions: 2, maxBytes: 1e9 },
  manifests: MANIFESTS,
  disk: { versions: new Set(), layers: new Set(), partialLayers: new Set() },
  servers,
  allServersSeen: true,
  retireGraceMs: GRACE_MS,
});

test('a version of another shard count leaves a server unchanged', () => {
  const servers = [idle({ active: '3', loaded: [{ version: '3', idleMs: 5 * GRACE_MS }] })];
  const end = settle(at('4', '3', servers));
  assert.deepEqual(
    end.servers[0]?.loaded.map((held) => held.version),
    ['3'],
  );
  assert.equal(end.servers[0]?.active, '3');
  assert.ok(!end.disk.versions.has('4'));
});

test('a second version fetches only the layers that differ', () => {
  const first = settle(at('1', undefined, [idle({})]));
  const fetched = plan({ ...at('2', '1', [...first.servers]), disk: first.disk }).disk;
  assert.deepEqual(
    fetched.map((action) => (action.kind === 'fetch' ? action.table : action.kind)),
    ['own', 'stage'],
  );
});

test('a restarted server is loaded from disk, the active version first', () => {
  const end = settle(at('2', '1', [idle({})]));
  const next = plan({ ...end, servers: [idle({})] });
  assert.deepEqual(next.disk, []);
  assert.deepEqual(
    next.servers.map(({ kind, version: v }) => `${kind} ${v}`),
    ['load 2', 'load 1'],
  );
});
