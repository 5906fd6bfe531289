/** Opens the live fleet and the gate of a bundle, for `controller` and `rollout`. */
import type { Logger } from '../../lib/platform/logs.ts';
import type { Repository } from '../../lib/repository/repository.ts';
import {
  type CallerOptions,
  createAgentCredentials,
  createServerCredentials,
} from '../../lib/rpc/credential-options.ts';
import { runGateProcess } from '../rollout/gate-process.ts';
import { LiveFleet } from '../rollout/live-fleet.ts';
import type { BundleRolloutConfig } from '../rollout/rollout-config.ts';
import { readFleet } from './options.ts';

export interface LiveFleetOptions extends CallerOptions {
  readonly repository: Repository;
  /** The options of the repository, passed on to the gate. */
  readonly source: { readonly repository: string; readonly trustedKeys: string | undefined };
  readonly fleetFile: string;
  readonly holder: string;
  readonly stopping: AbortSignal;
  readonly logger: Logger;
}

/** A short `gating-ms` limits how often the gate is tried, not a run of some minutes. */
const GATE_RUN_MS_MIN = 600_000;

/** @throws CubeError if a file is unreadable */
export function openLiveFleet(setup: LiveFleetOptions, bundle: BundleRolloutConfig): LiveFleet {
  const { repository, source, fleetFile, holder, stopping: signal, logger } = setup;
  readFleet(fleetFile);
  const gate = {
    ...source,
    bundle: bundle.name,
    fleetFile,
    serving: bundle.serving,
    flags: bundle.gateFlags,
    holder,
    // A run may use all of the time for attempts.
    timeoutMs: Math.max(bundle.policy.gatingMs, GATE_RUN_MS_MIN),
    signal,
  };
  return new LiveFleet({
    repository,
    bundle: bundle.name,
    serving: bundle.serving,
    health: bundle.health,
    logger,
    fleet: () => readFleet(fleetFile),
    gate: (version, active, by = holder) =>
      runGateProcess({ ...gate, holder: by }, version, active),
    serverCredentials: createServerCredentials(setup),
    agentCredentials: createAgentCredentials(setup),
  });
}
