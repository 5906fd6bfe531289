/** Looks at a bundle from every side: its repository, its fleet, the servers, the agents, serving. Changes nothing. */
import { CubeError } from '../../lib/core/errors.ts';
import type { Fleet } from '../../lib/core/fleet.ts';
import type { Repository } from '../../lib/repository/repository.ts';
import type { Credentials } from '../../lib/rpc/credentials.ts';
import { ControlClient } from '../fleet/control-client.ts';
import { agentsOf, type ServerPlace, serversOf } from '../fleet/fleet-view.ts';
import { type Finding, type Patient, type Report, sortFindings } from './findings.ts';
import { checkAgents, checkServings } from './host-checks.ts';
import { checkRepository } from './repository-checks.ts';
import { checkFleet, checkServers, type SeenServer } from './server-checks.ts';

export interface DoctorWish {
  readonly repository: Repository;
  readonly patient: Patient;
  /** Reads every layer that is wanted. */
  readonly deep: boolean;
  readonly staleMs: number | undefined;
  /** Where the fleet lies, and how to read it; undefined: no servers are looked at. */
  readonly fleet: { readonly path: string; readonly read: () => Fleet } | undefined;
  readonly servings: readonly string[];
  /** For servers, and for agents. */
  readonly toServers: Credentials;
  readonly toAgents: Credentials;
  readonly onBytes: (bytes: number) => void;
}

/** @throws CubeError NOT_FOUND for a bundle that the repository does not have */
export async function examine(wish: DoctorWish): Promise<Finding[]> {
  const findings: Finding[] = [];
  const report: Report = (finding) => findings.push(finding);
  const { patient, staleMs, servings } = wish;
  const { state, manifest } = await checkRepository(wish, report);
  const fleet = readFleet(wish, report);
  if (fleet !== undefined && wish.fleet !== undefined) {
    const fleetFile = wish.fleet.path;
    checkFleet(fleet, { patient, fleetFile, manifest }, report);
    const servers = await ask(serversOf(fleet, patient.bundle), wish.toServers);
    checkServers({ patient, fleetFile, servers, manifest }, report);
    const layers = manifest?.tables.flatMap(({ shards }) => shards.flat()) ?? [];
    const versionBytes = layers.reduce((sum, { bytes }) => sum + bytes, 0);
    const agents = agentsOf(fleet, patient.bundle);
    await checkAgents(
      { patient, agents, credentials: wish.toAgents, staleMs, versionBytes },
      report,
    );
  }
  await checkServings({ patient, servings, version: state?.pointer?.version }, report);
  return sortFindings(findings);
}

function readFleet({ fleet }: DoctorWish, report: Report): Fleet | undefined {
  if (fleet === undefined) return undefined;
  try {
    return fleet.read();
  } catch (error) {
    report({
      severity: 'error',
      check: 'fleet-invalid',
      where: fleet.path,
      what: CubeError.from(error).message,
      todo: `mend it, then cube-agent fleet validate --fleet ${fleet.path}; clients go on with what they read before`,
    });
    return undefined;
  }
}

function ask(places: readonly ServerPlace[], credentials: Credentials): Promise<SeenServer[]> {
  return Promise.all(
    places.map(async (place) => {
      try {
        return { place, status: await new ControlClient(place.address, credentials).status() };
      } catch (error) {
        return { place, error: CubeError.from(error) };
      }
    }),
  );
}
