/**
 * Changes of the fleet under traffic. A replica is added to fleet.json only when it can answer. A
 * replica that was removed from fleet.json is waited for until it gets no more requests. A change
 * that was killed can be run again.
 */
import { CubeError } from '../../lib/core/errors.ts';
import type { Clock } from '../../lib/platform/clock.ts';
import type { Credentials } from '../../lib/rpc/credentials.ts';
import type { ControlStatus } from '../../proto/control.ts';
import { ControlClient } from './control-client.ts';
import { FleetDocument, type ReplicaEntry } from './fleet-document.ts';

const POLL_MS = 250;
/** Clients reread fleet.json each second. */
const REREAD_MS = 2_000;

export interface FleetChangeContext {
  /** fleet.json */
  readonly path: string;
  readonly bundle: string;
  readonly credentials: Credentials;
  readonly timeoutMs: number;
  readonly clock: Clock;
  readonly dryRun: boolean;
  /** Called with progress messages. */
  readonly report: (text: string) => void;
}

/**
 * Adds a replica to its shard once it has loaded the versions that the others have active, and
 * waits until clients use it: another replica may be drained or stopped then.
 */
export async function addReplica(context: FleetChangeContext, entry: ReplicaEntry): Promise<void> {
  const { path, bundle, dryRun, report } = context;
  const status = await readServerStatus(context, getControlAddress(entry));
  const { shardIndex: shard, shardNum } = status;
  const maps = FleetDocument.read(path).fleet.bundles.get(bundle) ?? [];
  const map = maps.find((candidate) => candidate.shardNum === shardNum);
  if (map === undefined) {
    const known = maps.map((candidate) => candidate.shardNum).join(', ') || 'none';
    throw new CubeError(
      'NOT_FOUND',
      `${entry.data} serves shard ${shard} of ${shardNum}; ${path} lists ${bundle} with these ` +
        `shard counts: ${known}; use "fleet reshard" with servers of all shards`,
    );
  }
  const peers = map.shards[shard] ?? [];
  if (peers.some(({ data }) => data === entry.data)) {
    report(`${entry.data} is already in ${path} as shard ${shard} of ${shardNum}`);
    return;
  }
  await waitUntil(context, async () => {
    const required = await listActiveVersions(
      context,
      peers.map(({ control }) => control),
    );
    const loaded = listLoadedVersions(
      await readServerStatus(context, getControlAddress(entry)),
      bundle,
    );
    const missing = required.filter((version) => !loaded.includes(version));
    if (missing.length > 0) {
      return `${entry.data} has not loaded version ${missing.join(', ')} yet`;
    }
    return loaded.length > 0 || `${entry.data} has not loaded any version of ${bundle} yet`;
  });
  const answers = `${entry.data} answers for shard ${shard} of ${shardNum}`;
  if (dryRun) {
    report(`${answers} and can be added`);
    return;
  }
  FleetDocument.read(path).addReplica(bundle, { shardNum, shard }, entry);
  await context.clock.sleep(REREAD_MS);
  report(`${answers}; clients have read ${path}`);
}

/** Removes a replica and waits until it got no lookup for `idleMs`, so that it may be stopped. */
export async function removeReplica(
  context: FleetChangeContext,
  data: string,
  idleMs: number,
): Promise<void> {
  const { path, bundle, dryRun, report } = context;
  const { replica, shard, shardNum, others } = FleetDocument.read(path).findReplica(bundle, data);
  await requireOtherReplicas(context, data);
  if (others.length === 0) throw lastReplicaError(shard, shardNum, data);
  if (dryRun) {
    report(`${data} can be removed: other replicas have loaded its active versions`);
    return;
  }
  FleetDocument.read(path).removeReplica(bundle, data);
  report(`${data} was removed from ${path}; waiting until it gets no more lookups`);
  await waitUntilIdle(context, [replica.control], idleMs);
  report(`${data} gets no more lookups and may be stopped`);
}

/** Makes a replica refuse lookups, so that clients use the others. fleet.json does not change. */
export async function drainReplica(context: FleetChangeContext, data: string): Promise<void> {
  const { path, bundle, credentials, dryRun, report } = context;
  const { replica } = FleetDocument.read(path).findReplica(bundle, data);
  await requireOtherReplicas(context, data);
  if (dryRun) {
    report(`${data} can be drained: other replicas have loaded its active versions`);
    return;
  }
  await new ControlClient(replica.control, credentials).drain(true);
  await waitUntilIdle(context, [replica.control], 2 * POLL_MS);
  report(`${data} is drained: it refuses lookups until "fleet undrain" or a restart`);
}

export async function undrainReplica(context: FleetChangeContext, data: string): Promise<void> {
  const { path, bundle, credentials, dryRun, report } = context;
  const { replica } = FleetDocument.read(path).findReplica(bundle, data);
  if (!dryRun) await new ControlClient(replica.control, credentials).drain(false);
  report(`${data} answers lookups again`);
}

/** Requires that other replicas of the shard answer for every version that is active on it. */
async function requireOtherReplicas(context: FleetChangeContext, data: string): Promise<void> {
  const { path, bundle } = context;
  const { replica, shard, shardNum, others } = FleetDocument.read(path).findReplica(bundle, data);
  const required = await listActiveVersions(context, [
    replica.control,
    ...others.map(({ control }) => control),
  ]);
  for (const version of required) {
    if (
      await isLoadedOnOne(
        context,
        others.map(({ control }) => control),
        version,
      )
    )
      continue;
    throw others.length === 0
      ? lastReplicaError(shard, shardNum, data)
      : new CubeError(
          'CONFLICT',
          `without ${data} no replica would answer version ${version} for shard ${shard} of ` +
            `${shardNum}: ${others.map((other) => other.data).join(', ')} have not loaded it or ` +
            'are draining',
        );
  }
}

function lastReplicaError(shard: number, shardNum: number, data: string): CubeError {
  return new CubeError(
    'CONFLICT',
    `${data} is the last replica of shard ${shard} of ${shardNum}: add another first with ` +
      '"fleet add-replica"',
  );
}

async function isLoadedOnOne(
  context: FleetChangeContext,
  controls: readonly string[],
  version: string,
): Promise<boolean> {
  for (const control of controls) {
    const status = await readServerStatus(context, control).catch(() => undefined);
    if (status === undefined || status.draining) continue;
    if (listLoadedVersions(status, context.bundle).includes(version)) return true;
  }
  return false;
}

/** Versions that are active on any of the servers. A server that does not answer has none. */
async function listActiveVersions(
  context: FleetChangeContext,
  controls: readonly string[],
): Promise<string[]> {
  const active = await Promise.all(
    controls.map(async (control) => {
      const status = await readServerStatus(context, control).catch(() => undefined);
      return status?.bundles.find(({ bundle }) => bundle === context.bundle)?.active ?? '';
    }),
  );
  return [...new Set(active.filter((version) => version !== ''))];
}

/**
 * Waits until no server got a lookup for `idleMs`. A server that does not answer counts as idle.
 */
export async function waitUntilIdle(
  context: FleetChangeContext,
  controls: readonly string[],
  idleMs: number,
): Promise<void> {
  await waitUntil(context, async () => {
    for (const control of controls) {
      const status = await readServerStatus(context, control).catch(() => undefined);
      const entry = status?.bundles.find(({ bundle }) => bundle === context.bundle);
      const used = entry?.versions.find((version) => version.idleMs < idleMs);
      if (used === undefined) continue;
      return (
        `${control} got a lookup of version ${used.version} ${used.idleMs} ms ago: ` +
        'check whether a client reads another fleet file'
      );
    }
    return true;
  });
}

/**
 * @param look returns true, or what the wait is for
 * @throws CubeError DEADLINE_EXCEEDED with the last reason
 */
async function waitUntil(
  { clock, timeoutMs, dryRun }: FleetChangeContext,
  look: () => Promise<true | string>,
): Promise<void> {
  const endMs = clock.nowMs() + (dryRun ? 0 : timeoutMs);
  for (;;) {
    const result = await look();
    if (result === true) return;
    if (clock.nowMs() < endMs) {
      await clock.sleep(POLL_MS);
      continue;
    }
    const after = dryRun ? 'now' : `after ${timeoutMs} ms`;
    throw new CubeError('DEADLINE_EXCEEDED', `${after}: ${result}`);
  }
}

export function readServerStatus(
  { credentials }: FleetChangeContext,
  control: string,
): Promise<ControlStatus> {
  return new ControlClient(control, credentials).status();
}

function listLoadedVersions(status: ControlStatus, bundle: string): string[] {
  const entry = status.bundles.find((candidate) => candidate.bundle === bundle);
  return (entry?.versions ?? []).map(({ version }) => version);
}

export function getControlAddress({ data, control }: ReplicaEntry): string {
  return control ?? data;
}
