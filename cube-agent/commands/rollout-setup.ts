/** What controller and `rollout` make of a bundle's policy: a fleet to look at, a gate to run. */
import type { Logger } from '../../lib/platform/logs.ts';
import type { Repository } from '../../lib/repository/repository.ts';
import {
  agentCredentials,
  type CallerFlags,
  serverCredentials,
} from '../../lib/rpc/credential-options.ts';
import { runGateProcess } from '../rollout/gate-process.ts';
import { LiveFleet } from '../rollout/live-fleet.ts';
import type { BundleRollouts } from '../rollout/rollout-config.ts';
import { readFleet } from './options.ts';

export interface FleetSetup extends CallerFlags {
  readonly repository: Repository;
  /** As given, for the gate. */
  readonly place: { readonly repository: string; readonly trustedKeys: string | undefined };
  readonly fleetFile: string;
  readonly holder: string;
  readonly stopping: AbortSignal;
  readonly logger: Logger;
}

/** @throws CubeError when a file is unreadable */
export function openLiveFleet(setup: FleetSetup, bundle: BundleRollouts): LiveFleet {
  const { repository, place, fleetFile, holder, stopping: signal, logger } = setup;
  readFleet(fleetFile);
  const gate = {
    ...place,
    bundle: bundle.name,
    fleetFile,
    flags: bundle.gateFlags,
    holder,
    signal,
  };
  return new LiveFleet({
    ...{ repository, bundle: bundle.name, serving: bundle.serving, health: bundle.health, logger },
    fleet: () => readFleet(fleetFile),
    gate: (version, active) => runGateProcess(gate, version, active),
    toServers: serverCredentials(setup),
    toAgents: agentCredentials(setup),
  });
}
