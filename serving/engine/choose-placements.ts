/** Chooses the execution providers of the instances of a version. */
import { CubeError } from '../../lib/core/errors.ts';
import type { Logger } from '../../lib/platform/logs.ts';
import {
  CPU_ONLY,
  chooseProviders,
  formatProvider,
  type MissingProvider,
  type ProviderOrder,
} from '../../lib/platform/onnx-providers.ts';

interface Choice {
  readonly placements: readonly ProviderOrder[];
  /** Providers that cannot run here, and that the CPU replaces. */
  readonly missing: readonly MissingProvider[];
}

/** @throws CubeError UNSUPPORTED naming a provider that cannot run here, and what to install */
async function checkPlacements(placements: readonly ProviderOrder[]): Promise<Choice> {
  if (placements.flat().every(({ name }) => name === 'cpu')) return { placements, missing: [] };
  // Most processes need no runtime on the main thread.
  const { findProviderProblem } = await import('../../lib/platform/onnx.ts');
  const chosen: ProviderOrder[] = [];
  const missing = new Map<string, MissingProvider>();
  for (const placement of placements) {
    const choice = await chooseProviders(placement, findProviderProblem);
    chosen.push(choice.order);
    for (const one of choice.missing) missing.set(formatProvider(one.provider), one);
  }
  return { placements: chosen, missing: [...missing.values()] };
}

/** The same for a load, with a warning for each missing provider. */
export async function choosePlacements(
  requested: readonly ProviderOrder[] = [CPU_ONLY],
  { logger, source }: { readonly logger: Logger; readonly source: string },
): Promise<readonly ProviderOrder[]> {
  const { placements, missing } = await checkPlacements(requested);
  for (const { provider, reason } of missing) {
    const name = formatProvider(provider);
    logger.warn({ model: source, provider: name, reason }, 'provider is missing; using the CPU');
  }
  return placements;
}

/**
 * The missing providers as settings without effect, for the report of a configuration.
 * @throws CubeError UNSUPPORTED when the model could not be loaded
 */
export async function listMissingProviders({
  source,
  placements,
}: {
  readonly source: string;
  readonly placements: readonly ProviderOrder[];
}): Promise<{ readonly setting: string; readonly reason: string }[]> {
  try {
    const { missing } = await checkPlacements(placements);
    return missing.map(({ provider, reason }) => {
      return { setting: `${source} provider ${formatProvider(provider)}`, reason };
    });
  } catch (error) {
    const { code, message } = CubeError.from(error);
    throw new CubeError(code, `${source}: ${message}`, { cause: error });
  }
}
