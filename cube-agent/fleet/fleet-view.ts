/** What all servers of a fleet say of one bundle, and waiting until they all say one thing. */
import { CubeError } from '../../lib/core/errors.ts';
import { type Fleet, shardMapOf } from '../../lib/core/fleet.ts';
import type { Manifest } from '../../lib/core/manifest.ts';
import { tablesDigest } from '../../lib/core/tables-digest.ts';
import type { Clock } from '../../lib/platform/clock.ts';
import type { Credentials } from '../../lib/rpc/credentials.ts';
import type { BundleStatus, ControlStatus } from '../../proto/control.ts';
import { ControlClient } from './control-client.ts';

const ASK_AGAIN_MS = 50;

export interface ServerPlace {
  readonly address: string;
  /** Where the fleet says it is; undefined when only the address was given. */
  readonly shard: { readonly index: number; readonly shardNum: number } | undefined;
}

export interface ServerReport {
  readonly address: string;
  readonly shardIndex: number | undefined;
  readonly shardNum: number | undefined;
  readonly ready: boolean;
  readonly draining: boolean;
  /** Undefined when it did not answer. */
  readonly memory: { readonly usedBytes: number; readonly budgetBytes: number } | undefined;
  readonly active: string | undefined;
  readonly held: readonly string[];
  readonly loading: readonly string[];
  /** Failed loads, no answer, or a server of another shard than the fleet says; empty when all is well. */
  readonly trouble: readonly string[];
}

/** Every server of the bundle, or only those of one shard count. */
export function serversOf(fleet: Fleet, bundle: string, shardNum?: number): ServerPlace[] {
  const maps =
    shardNum === undefined
      ? (fleet.bundles.get(bundle) ?? [])
      : [shardMapOf(fleet, bundle, shardNum)];
  return maps.flatMap((map) =>
    map.shards.flatMap((replicas, index) =>
      replicas.map(({ control }) => ({
        address: control,
        shard: { index, shardNum: map.shardNum },
      })),
    ),
  );
}

/** The agents of the bundle's hosts, each once. */
export function agentsOf(fleet: Fleet, bundle: string): string[] {
  const replicas = (fleet.bundles.get(bundle) ?? []).flatMap(({ shards }) => shards.flat());
  return [...new Set(replicas.flatMap(({ agent }) => agent ?? []))];
}

/** @param meant a version with its content: who holds other rows under its name does not hold it, and says so */
export function askServers(
  places: readonly ServerPlace[],
  bundle: string,
  credentials: Credentials,
  meant?: Manifest,
): Promise<ServerReport[]> {
  return Promise.all(
    places.map(async (place) => {
      try {
        const status = await new ControlClient(place.address, credentials).status();
        const said = report(place, status, bundle);
        return meant === undefined ? said : withoutNamesake(said, status, meant);
      } catch (error) {
        return silent(place, CubeError.from(error).message);
      }
    }),
  );
}

function silent({ address, shard }: ServerPlace, message: string): ServerReport {
  return {
    address,
    shardIndex: shard?.index,
    shardNum: shard?.shardNum,
    ready: false,
    draining: false,
    memory: undefined,
    active: undefined,
    held: [],
    loading: [],
    trouble: [message],
  };
}

function report(
  { address, shard }: ServerPlace,
  status: ControlStatus,
  bundle: string,
): ServerReport {
  const { shardIndex, shardNum, ready, draining = false, memory } = status;
  const entry: BundleStatus | undefined = status.bundles.find((b) => b.bundle === bundle);
  const trouble = status.failed
    .filter((failed) => failed.bundle === bundle)
    .map(({ version, code, message }) => `loading ${version} failed: ${code} ${message}`);
  if (shard !== undefined && (shard.index !== shardIndex || shard.shardNum !== shardNum)) {
    trouble.unshift(`the fleet says it is shard ${shard.index}/${shard.shardNum}`);
  }
  return {
    address,
    shardIndex,
    shardNum,
    ready,
    draining,
    memory: { usedBytes: memory.usedBytes, budgetBytes: memory.budgetBytes },
    active: entry === undefined || entry.active === '' ? undefined : entry.active,
    held: (entry?.versions ?? []).map(({ version }) => version),
    loading: status.loading.filter((load) => load.bundle === bundle).map((load) => load.version),
    trouble,
  };
}

function withoutNamesake(said: ServerReport, status: ControlStatus, meant: Manifest): ServerReport {
  const { version } = meant;
  const trouble = namesakeOf(status, meant);
  if (trouble === undefined) return said;
  return {
    ...said,
    active: said.active === version ? undefined : said.active,
    held: said.held.filter((name) => name !== version),
    trouble: [trouble, ...said.trouble],
  };
}

/** In words, what a server holds under the version's name that is not the version: lookups that mean it are refused there. */
export function namesakeOf({ bundles }: ControlStatus, meant: Manifest): string | undefined {
  const { bundle, version } = meant;
  const entry = bundles.find((candidate) => candidate.bundle === bundle);
  const digest = entry?.versions.find((held) => held.version === version)?.tablesDigest ?? '';
  if (digest === '' || digest === tablesDigest(meant)) return undefined;
  return `holds other rows under the name ${version} (${digest}, published are ${tablesDigest(meant)})`;
}

export interface VersionWish {
  /** Of the version waited for. */
  readonly manifest: Manifest;
  /** `held` answers whoever names it; `active` whoever names none too. */
  readonly until: 'active' | 'held';
  readonly timeoutMs: number;
  readonly credentials: Credentials;
}

/** @throws CubeError DEADLINE_EXCEEDED naming each server that is not there, and why */
export async function waitForVersion(
  places: readonly ServerPlace[],
  wish: VersionWish,
  clock: Clock,
): Promise<number> {
  const { manifest, until, timeoutMs, credentials } = wish;
  const { bundle, version } = manifest;
  const startMs = clock.nowMs();
  for (;;) {
    const reports = await askServers(places, bundle, credentials, manifest);
    const late = reports.filter(({ active, held }) =>
      until === 'active' ? active !== version : !held.includes(version),
    );
    const elapsedMs = clock.nowMs() - startMs;
    if (late.length === 0) return elapsedMs;
    if (elapsedMs >= timeoutMs) {
      throw new CubeError(
        'DEADLINE_EXCEEDED',
        `${late.length} of ${reports.length} servers ${until === 'active' ? 'are not at' : 'do not hold'} version ${version} of ${bundle} ` +
          `after ${timeoutMs} ms:\n${late.map((server) => `  ${describe(server)}`).join('\n')}`,
      );
    }
    await clock.sleep(ASK_AGAIN_MS);
  }
}

function describe({
  address,
  shardIndex,
  shardNum,
  active,
  loading,
  trouble,
}: ServerReport): string {
  const doing = loading.length > 0 ? `, loading ${loading.join(', ')}` : '';
  const why = trouble.length > 0 ? `: ${trouble.join('; ')}` : '';
  return `shard ${shardIndex ?? '?'}/${shardNum ?? '?'} at ${address} has ${active ?? 'nothing'} active${doing}${why}`;
}
