/** What can be wrong between the fleet, the channel and what each server says of itself. Pure. */
import type { CubeError } from '../../lib/core/errors.ts';
import type { Fleet } from '../../lib/core/fleet.ts';
import { type Manifest, shardNumOf } from '../../lib/core/manifest.ts';
import { bytesText } from '../../lib/platform/text-table.ts';
import type { ControlStatus } from '../../proto/control.ts';
import { namesakeOf, type ServerPlace } from '../fleet/fleet-view.ts';
import type { Patient, Report } from './findings.ts';

/** A server of the fleet, and what it answered. */
export type SeenServer = { readonly place: ServerPlace } & (
  | { readonly status: ControlStatus }
  | { readonly error: CubeError }
);

type Answering = Extract<SeenServer, { status: ControlStatus }>;

export interface ServersWish {
  readonly patient: Patient;
  readonly fleetFile: string;
  readonly servers: readonly SeenServer[];
  /** Of the version that the channel points to; undefined where that is not known. */
  readonly manifest: Manifest | undefined;
}

/** The fleet against the version wanted. */
export function checkFleet(
  fleet: Fleet,
  { patient: { bundle }, fleetFile, manifest }: Omit<ServersWish, 'servers'>,
  report: Report,
): void {
  const maps = fleet.bundles.get(bundle);
  if (maps === undefined) {
    report({
      severity: 'error',
      check: 'bundle-not-in-fleet',
      where: fleetFile,
      what: `has no servers of ${bundle} (it has: ${[...fleet.bundles.keys()].join(', ') || 'none'})`,
      todo: `cube-agent fleet add-replica --fleet ${fleetFile} --bundle ${bundle} --data <host:port>, once for each shard`,
    });
    return;
  }
  if (manifest === undefined) return;
  const shardNum = shardNumOf(manifest);
  if (!maps.some((map) => map.shardNum === shardNum)) {
    report({
      severity: 'error',
      check: 'shard-count-absent',
      where: fleetFile,
      what: `version ${manifest.version} has ${shardNum} shards, the fleet's servers of ${bundle} have ${maps.map((map) => map.shardNum).join(', ')}`,
      todo: `start servers with --shard-num ${shardNum} and cube-agent fleet reshard; or build with --shard-num ${maps[0]?.shardNum}`,
    });
  }
  for (const map of maps) {
    if (map.shardNum === shardNum || maps.length === 1) continue;
    report({
      severity: 'note',
      check: 'second-shard-count',
      where: fleetFile,
      what: `names servers of ${map.shardNum} shards too, the channel's version has ${shardNum}`,
      todo: `when nothing goes back to ${map.shardNum} shards: cube-agent fleet retire --fleet ${fleetFile} --bundle ${bundle} --shard-num ${map.shardNum}`,
    });
  }
}

export function checkServers(wish: ServersWish, report: Report): void {
  for (const server of wish.servers) {
    if ('status' in server) checkServer(server, wish, report);
    else reportSilent(server.place, server.error, wish, report);
  }
  const { manifest } = wish;
  if (manifest === undefined) return;
  const shardNum = shardNumOf(manifest);
  const placed = wish.servers.filter(({ place }) => place.shard?.shardNum === shardNum);
  if (placed.length === 0) return;
  checkShards(placed, wish, manifest, report);
  checkMixed(placed, wish, manifest.version, report);
}

function reportSilent(
  { address }: ServerPlace,
  { code, message }: CubeError,
  { fleetFile, patient }: ServersWish,
  report: Report,
): void {
  const denied = code === 'DENIED';
  report({
    severity: 'error',
    check: denied ? 'server-denied' : 'server-down',
    where: address,
    what: message,
    todo: denied
      ? 'give it and its agent a token (cube-server --control-token-file) and doctor the same by --control-token-file, or certificates to all (--tls-cert, --tls-key, --tls-ca)'
      : `start it again, or take it out: cube-agent fleet remove-replica --fleet ${fleetFile} --bundle ${patient.bundle} --data <its data endpoint>`,
  });
}

function checkServer(server: Answering, wish: ServersWish, report: Report): void {
  const { place, status } = server;
  const { bundle } = wish.patient;
  const where = place.address;
  const { shardIndex, shardNum } = status;
  if (place.shard && (place.shard.index !== shardIndex || place.shard.shardNum !== shardNum)) {
    report({
      severity: 'error',
      check: 'wrong-shard',
      where,
      what: `serves shard ${shardIndex} of ${shardNum}, the fleet says shard ${place.shard.index} of ${place.shard.shardNum}`,
      todo: `start it with --shard ${place.shard.index} --shard-num ${place.shard.shardNum}, or put it right in ${wish.fleetFile}`,
    });
  }
  if (status.draining) {
    report({
      severity: 'warning',
      check: 'draining',
      where,
      what: 'refuses lookups: it was told to drain',
      todo: `cube-agent fleet undrain --fleet ${wish.fleetFile} --bundle ${bundle} --data <its data endpoint>`,
    });
  } else if (!status.ready) {
    const loading = status.loading.map(({ version }) => version).join(', ');
    report({
      severity: 'error',
      check: 'not-ready',
      where,
      what: loading === '' ? 'has no version active' : `is loading ${loading}, and has nothing yet`,
      todo: 'see what its agent says: cube-agent status --fleet; an agent that does not run is started again',
    });
  }
  for (const { version, code, message } of status.failed.filter((f) => f.bundle === bundle)) {
    report({
      severity: 'error',
      check: 'load-failed',
      where,
      what: `version ${version}: ${code} ${message}`,
      todo: 'its agent fetches what is damaged again and goes on trying; more --memory helps where room is missing',
    });
  }
  const namesake = wish.manifest && namesakeOf(status, wish.manifest);
  if (namesake !== undefined) {
    report({
      severity: 'error',
      check: 'other-rows',
      where,
      what: namesake,
      todo: 'restart it: its agent has it load what the repository has; publish other content under another name',
    });
  }
  checkMemory(server, wish, report);
}

/** While a version is staged, the active one and the new one are there at once. */
function checkMemory({ place, status }: Answering, { patient }: ServersWish, report: Report): void {
  const entry = status.bundles.find(({ bundle }) => bundle === patient.bundle);
  const active = entry?.versions.find(({ version }) => version === entry.active);
  const { budgetBytes, usedBytes } = status.memory;
  if (active === undefined || budgetBytes === 0) return;
  const others = usedBytes - (entry?.versions.reduce((sum, { bytes }) => sum + bytes, 0) ?? 0);
  const needed = Math.max(0, others) + 2 * active.bytes;
  if (needed <= budgetBytes) return;
  report({
    severity: 'warning',
    check: 'memory-tight',
    where: place.address,
    what: `--memory ${bytesText(budgetBytes)} does not hold two versions of ${bytesText(active.bytes)}: the next one is refused`,
    todo: `start it with --memory ${Math.ceil((needed + active.bytes) / 2 ** 20)}MiB, which holds three`,
  });
}

function checkShards(
  servers: readonly SeenServer[],
  { patient, fleetFile }: ServersWish,
  manifest: Manifest,
  report: Report,
): void {
  const { version } = manifest;
  for (let shard = 0; shard < shardNumOf(manifest); shard++) {
    const own = servers.filter(({ place }) => place.shard?.index === shard);
    const answers = own.filter((server) => isAnswering(server, manifest));
    if (answers.length > 0) continue;
    report({
      severity: 'error',
      check: 'shard-without-replica',
      where: `shard ${shard} of ${shardNumOf(manifest)}`,
      what: `none of its ${own.length} servers answers with version ${version}`,
      todo: `bring one of ${own.map(({ place }) => place.address).join(', ')} back, or cube-agent fleet add-replica --fleet ${fleetFile} --bundle ${patient.bundle}`,
    });
  }
}

function isAnswering(server: SeenServer, manifest: Manifest): boolean {
  if (!('status' in server) || namesakeOf(server.status, manifest) !== undefined) return false;
  const { bundle, version } = manifest;
  const { place, status } = server;
  const { shardIndex, shardNum, draining } = status;
  if (draining || place.shard?.index !== shardIndex || place.shard.shardNum !== shardNum)
    return false;
  const entry = status.bundles.find((candidate) => candidate.bundle === bundle);
  return entry?.versions.some((candidate) => candidate.version === version) ?? false;
}

/** Pinned lookups name their version: what differs here concerns unpinned ones, and says that somebody is behind. */
function checkMixed(
  servers: readonly SeenServer[],
  { patient }: ServersWish,
  version: string,
  report: Report,
): void {
  const actives = new Map<string, string[]>();
  for (const server of servers) {
    if (!('status' in server)) continue;
    const active = server.status.bundles.find(({ bundle }) => bundle === patient.bundle)?.active;
    if (active === undefined || active === '') continue;
    actives.set(active, [...(actives.get(active) ?? []), server.place.address]);
  }
  if (actives.size > 1) {
    const said = [...actives].map(([active, who]) => `version ${active} on ${who.join(', ')}`);
    report({
      severity: 'error',
      check: 'versions-mixed',
      where: patient.bundle,
      what: `servers have different versions active: ${said.join('; ')}`,
      todo: 'wait a moment if a rollout runs; else see cube-agent status --fleet for the agent that does not go on',
    });
  } else if (actives.size === 1 && !actives.has(version)) {
    report({
      severity: 'error',
      check: 'behind',
      where: patient.bundle,
      what: `all servers have version ${[...actives.keys()][0]} active, channel ${patient.channel} wants ${version}`,
      todo: 'see cube-agent status --fleet for what the agents say; poke or start them again',
    });
  }
}
