/** The variants of a predictor: the choice of one by weight, and its connections. */
import { systemClock, type TimerClock } from '../platform/clock.ts';
import type { Credentials } from '../rpc/credentials.ts';
import type { CallPolicy, ConcurrencyLimitPolicy } from './call-policy.ts';
import type { NamingService } from './naming.ts';
import type { ConnectedVariant } from './predictor.ts';
import type { VariantConf } from './predictors-conf.ts';
import type { ClientLogger } from './replica.ts';
import { ServiceClient } from './service-client.ts';

export interface VariantOptions {
  readonly logger?: ClientLogger;
  readonly credentials?: Credentials;
  readonly concurrencyLimit?: ConcurrencyLimitPolicy;
  readonly clock?: TimerClock;
}

/** No server has it: any answer shows that the server is healthy. */
const PROBE_METHOD = 'probe';

/**
 * Returns the index of a variant, each with the probability of its weight.
 * @param weights some are > 0
 * @param random in 0 … 1, without 1
 */
export function chooseVariant(weights: readonly number[], random: number): number {
  let remaining = random * weights.reduce((sum, weight) => sum + weight, 0);
  for (const [index, weight] of weights.entries()) {
    if (remaining < weight) return index;
    remaining -= weight;
  }
  return weights.findLastIndex((weight) => weight > 0);
}

export function connectVariant(
  service: string,
  conf: VariantConf,
  naming: NamingService,
  { logger, credentials, concurrencyLimit, clock = systemClock }: VariantOptions,
): ConnectedVariant {
  const policy: CallPolicy = {
    loadBalancer: conf.loadBalancer,
    retryMax: conf.connectRetryMax,
    backupRequest: conf.hedgeMs < 0 ? 'never' : Math.max(1, conf.hedgeMs),
    backupMax: conf.hedgeMax,
    ...(concurrencyLimit !== undefined && { concurrencyLimit }),
  };
  const client = new ServiceClient({
    endpoints: naming,
    protocol: conf.protocol,
    service,
    probeMethod: PROBE_METHOD,
    policy,
    repeatMax: conf.connectRetryMax,
    transport: {
      connectionType: conf.connectionType,
      connectTimeoutMs: conf.connectTimeoutMs,
      idleConnectionsMax: conf.idleConnectionsMax,
      compressType: conf.compressType,
      credentials,
    },
    clock,
    ...(logger !== undefined && { logger }),
  });
  return { conf, client };
}
