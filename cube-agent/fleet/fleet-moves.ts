/**
 * Changes of the fleet under traffic. Each waits until it is safe before readers of fleet.json see it, or, where replicas leave, until
 * nobody asks them any more after they saw it. Run again after a kill, each goes on where it was.
 */
import { CubeError } from '../../lib/core/errors.ts';
import type { Clock } from '../../lib/platform/clock.ts';
import type { Credentials } from '../../lib/rpc/credentials.ts';
import type { ControlStatus } from '../../proto/control.ts';
import { ControlClient } from './control-client.ts';
import { FleetDocument, type ReplicaEntry } from './fleet-document.ts';

const ASK_AGAIN_MS = 250;

export interface MoveContext {
  /** fleet.json */
  readonly path: string;
  readonly bundle: string;
  readonly credentials: Credentials;
  readonly timeoutMs: number;
  readonly clock: Clock;
  readonly dryRun: boolean;
  /** Told what is done and what is waited for. */
  readonly say: (text: string) => void;
}

/** Puts a replica beside its shard's others as soon as it holds what they have active. */
export async function addReplica(context: MoveContext, entry: ReplicaEntry): Promise<void> {
  const { path, bundle, dryRun, say } = context;
  const status = await statusOf(context, controlOf(entry));
  const { shardIndex: shard, shardNum } = status;
  const maps = FleetDocument.read(path).fleet.bundles.get(bundle) ?? [];
  const map = maps.find((candidate) => candidate.shardNum === shardNum);
  if (map === undefined) {
    const known = maps.map((candidate) => candidate.shardNum).join(', ') || 'none';
    throw new CubeError(
      'NOT_FOUND',
      `${entry.data} serves shard ${shard} of ${shardNum}; ${path} has ${bundle} at these shard counts: ${known}; ` +
        'give servers of all shards to "fleet reshard"',
    );
  }
  const peers = map.shards[shard] ?? [];
  if (peers.some(({ data }) => data === entry.data)) {
    say(`${entry.data} is in ${path} already, as shard ${shard} of ${shardNum}`);
    return;
  }
  await waitUntil(context, async () => {
    const wanted = await activeOf(
      context,
      peers.map(({ control }) => control),
    );
    const held = versionsOf(await statusOf(context, controlOf(entry)), bundle);
    const missing = wanted.filter((version) => !held.includes(version));
    if (missing.length > 0) return `${entry.data} does not hold version ${missing.join(', ')} yet`;
    return held.length > 0 || `${entry.data} holds no version of ${bundle} yet`;
  });
  if (!dryRun) FleetDocument.read(path).addReplica(bundle, { shardNum, shard }, entry);
  say(`${entry.data} answers for shard ${shard} of ${shardNum}; clients see it within a second`);
}

/** Takes a replica out; done when nobody has asked it for `idleMs`, so that it may be stopped. */
export async function removeReplica(
  context: MoveContext,
  data: string,
  idleMs: number,
): Promise<void> {
  const { path, bundle, dryRun, say } = context;
  const { replica, shard, shardNum, others } = FleetDocument.read(path).find(bundle, data);
  await requireCover(context, data);
  if (others.length === 0) throw lastOf(shard, shardNum, data);
  if (dryRun) {
    say(`${data} can go: others hold what it has active`);
    return;
  }
  FleetDocument.read(path).removeReplica(bundle, data);
  say(`${data} is out of ${path}; waiting until nobody asks it`);
  await waitIdle(context, [replica.control], idleMs);
  say(`nobody asks ${data} any more: it may be stopped`);
}

/** For a while, the fleet file stays as it is: the server refuses, clients turn to another replica. */
export async function drainReplica(context: MoveContext, data: string): Promise<void> {
  const { path, bundle, credentials, dryRun, say } = context;
  const { replica } = FleetDocument.read(path).find(bundle, data);
  await requireCover(context, data);
  if (dryRun) {
    say(`${data} can drain: others hold what it has active`);
    return;
  }
  await new ControlClient(replica.control, credentials).drain(true);
  await waitIdle(context, [replica.control], 2 * ASK_AGAIN_MS);
  say(`${data} is drained: it answers no lookup until "fleet undrain" or a restart`);
}

export async function undrainReplica(context: MoveContext, data: string): Promise<void> {
  const { path, bundle, credentials, dryRun, say } = context;
  const { replica } = FleetDocument.read(path).find(bundle, data);
  if (!dryRun) await new ControlClient(replica.control, credentials).drain(false);
  say(`${data} answers lookups again`);
}

/** Another replica of the shard must answer with everything that this one has active. */
async function requireCover(context: MoveContext, data: string): Promise<void> {
  const { path, bundle } = context;
  const { replica, shard, shardNum, others } = FleetDocument.read(path).find(bundle, data);
  const wanted = await activeOf(context, [
    replica.control,
    ...others.map(({ control }) => control),
  ]);
  for (const version of wanted) {
    if (
      await isHeldByOne(
        context,
        others.map(({ control }) => control),
        version,
      )
    )
      continue;
    throw others.length === 0
      ? lastOf(shard, shardNum, data)
      : new CubeError(
          'CONFLICT',
          `without ${data} nobody would answer version ${version} for shard ${shard} of ${shardNum}: ` +
            `none of ${others.map((other) => other.data).join(', ')} holds it and is not draining`,
        );
  }
}

function lastOf(shard: number, shardNum: number, data: string): CubeError {
  return new CubeError(
    'CONFLICT',
    `${data} is the last replica of shard ${shard} of ${shardNum}: add another first (fleet add-replica)`,
  );
}

async function isHeldByOne(
  context: MoveContext,
  controls: readonly string[],
  version: string,
): Promise<boolean> {
  for (const control of controls) {
    const status = await statusOf(context, control).catch(() => undefined);
    if (status === undefined || status.draining) continue;
    if (versionsOf(status, context.bundle).includes(version)) return true;
  }
  return false;
}

/** Versions that any of these has active; who does not answer has none. */
async function activeOf(context: MoveContext, controls: readonly string[]): Promise<string[]> {
  const seen = await Promise.all(
    controls.map(async (control) => {
      const status = await statusOf(context, control).catch(() => undefined);
      return status?.bundles.find(({ bundle }) => bundle === context.bundle)?.active ?? '';
    }),
  );
  return [...new Set(seen.filter((version) => version !== ''))];
}

/** A server that does not answer is asked by nobody. */
export async function waitIdle(
  context: MoveContext,
  controls: readonly string[],
  idleMs: number,
): Promise<void> {
  await waitUntil(context, async () => {
    for (const control of controls) {
      const status = await statusOf(context, control).catch(() => undefined);
      const entry = status?.bundles.find(({ bundle }) => bundle === context.bundle);
      const asked = entry?.versions.find((version) => version.idleMs < idleMs);
      if (asked === undefined) continue;
      return `${control} was asked for version ${asked.version} ${asked.idleMs} ms ago: does somebody read another fleet file?`;
    }
    return true;
  });
}

/** @throws CubeError DEADLINE_EXCEEDED with what was last in the way */
async function waitUntil(
  { clock, timeoutMs, dryRun }: MoveContext,
  look: () => Promise<true | string>,
): Promise<void> {
  const endMs = clock.nowMs() + (dryRun ? 0 : timeoutMs);
  for (;;) {
    const seen = await look();
    if (seen === true) return;
    if (clock.nowMs() < endMs) {
      await clock.sleep(ASK_AGAIN_MS);
      continue;
    }
    const after = dryRun ? 'now' : `after ${timeoutMs} ms`;
    throw new CubeError('DEADLINE_EXCEEDED', `${after}: ${seen}`);
  }
}

export function statusOf({ credentials }: MoveContext, control: string): Promise<ControlStatus> {
  return new ControlClient(control, credentials).status();
}

function versionsOf(status: ControlStatus, bundle: string): string[] {
  const entry = status.bundles.find((candidate) => candidate.bundle === bundle);
  return (entry?.versions ?? []).map(({ version }) => version);
}

export function controlOf({ data, control }: ReplicaEntry): string {
  return control ?? data;
}
