/** Checks a bundle in its repository, its fleet, its servers and agents, and serving. Read-only. */
import { CubeError } from '../../lib/core/errors.ts';
import { type Finding, type ReportFinding, sortFindings } from '../../lib/core/findings.ts';
import type { Fleet } from '../../lib/core/fleet.ts';
import type { Repository } from '../../lib/repository/repository.ts';
import type { Credentials } from '../../lib/rpc/credentials.ts';
import { ControlClient } from '../fleet/control-client.ts';
import { listAgents, listServers, type ServerLocation } from '../fleet/fleet-view.ts';
import type { CheckTarget } from './check-target.ts';
import { checkFleet, checkServers, type ProbedServer } from './fleet-checks.ts';
import { checkAgents, checkServings } from './host-checks.ts';
import { checkRepository } from './repository-checks.ts';

export interface DiagnoseOptions {
  readonly repository: Repository;
  readonly target: CheckTarget;
  /** Read every layer of the versions in use, not only its size. */
  readonly deep: boolean;
  /** Rows older than this are stale; undefined: never. */
  readonly staleMs: number | undefined;
  /** The path of fleet.json and how to read it; undefined: no servers and agents are checked. */
  readonly fleet: { readonly path: string; readonly read: () => Fleet } | undefined;
  /** Addresses of serving processes. */
  readonly servings: readonly string[];
  readonly serverCredentials: Credentials;
  readonly agentCredentials: Credentials;
  /** Called with the size of each layer that was read. */
  readonly onBytes: (bytes: number) => void;
}

/** @throws CubeError NOT_FOUND if the repository does not have the bundle */
export async function diagnose(options: DiagnoseOptions): Promise<Finding[]> {
  const findings: Finding[] = [];
  const report: ReportFinding = (finding) => findings.push(finding);
  const { target, staleMs, servings } = options;
  const { state, manifest } = await checkRepository(options, report);
  const fleet = readFleet(options, report);
  if (fleet !== undefined && options.fleet !== undefined) {
    const fleetFile = options.fleet.path;
    checkFleet(fleet, { target, fleetFile, manifest }, report);
    const servers = await readServerStatuses(
      listServers(fleet, target.bundle),
      options.serverCredentials,
    );
    checkServers({ target, fleetFile, servers, manifest }, report);
    const layers = manifest?.tables.flatMap(({ shards }) => shards.flat()) ?? [];
    const versionBytes = layers.reduce((sum, { bytes }) => sum + bytes, 0);
    const agents = listAgents(fleet, target.bundle);
    const credentials = options.agentCredentials;
    await checkAgents({ target, agents, credentials, staleMs, versionBytes }, report);
  }
  await checkServings({ target, servings, version: state?.pointer?.version }, report);
  return sortFindings(findings);
}

function readFleet({ fleet }: DiagnoseOptions, report: ReportFinding): Fleet | undefined {
  if (fleet === undefined) return undefined;
  try {
    return fleet.read();
  } catch (error) {
    report({
      severity: 'error',
      check: 'fleet-invalid',
      where: fleet.path,
      what: CubeError.from(error).message,
      todo:
        `correct the file and check it with cube-agent fleet validate --fleet ${fleet.path}; ` +
        'until then clients keep the last valid fleet',
    });
    return undefined;
  }
}

function readServerStatuses(
  locations: readonly ServerLocation[],
  credentials: Credentials,
): Promise<ProbedServer[]> {
  return Promise.all(
    locations.map(async (location) => {
      try {
        const status = await new ControlClient(location.address, credentials).status();
        return { location, status };
      } catch (error) {
        return { location, error: CubeError.from(error) };
      }
    }),
  );
}
