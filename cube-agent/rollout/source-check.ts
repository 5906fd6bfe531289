/**
 * Checks a version in the repository. Hosts report the same errors for data that is damaged only
 * in transit, so a rollout reads the source itself before it blames the version.
 */
import { CubeError, type ErrorCode } from '../../lib/core/errors.ts';
import type { Repository } from '../../lib/repository/repository.ts';
import type { ManifestFailure } from './rollout-view.ts';

/** Codes of a manifest that is damaged for ever. */
const DAMAGED_CODES: ReadonlySet<ErrorCode> = new Set(['CORRUPT', 'TOO_LARGE']);
/** Codes of a manifest that may still be signed or restored, or that a newer release can read. */
const RETRYABLE_CODES: ReadonlySet<ErrorCode> = new Set(['DENIED', 'NOT_FOUND', 'UNSUPPORTED']);

/**
 * @returns undefined when the manifest can be read
 * @throws CubeError when the repository cannot be read
 */
export async function checkManifest(
  repository: Repository,
  bundle: string,
  version: string,
): Promise<ManifestFailure | undefined> {
  try {
    await repository.readManifest(bundle, version);
    return undefined;
  } catch (error) {
    const { code, message } = CubeError.from(error);
    if (DAMAGED_CODES.has(code)) return { fault: 'version', reason: message };
    if (RETRYABLE_CODES.has(code)) return { fault: 'fleet', reason: message };
    throw error;
  }
}

/**
 * Reads layers up to the first one that does not match the manifest.
 * @param layers names as table/contentId
 * @returns the error of the damaged layer; undefined when all are intact
 */
export async function findSourceDamage(
  repository: Repository,
  source: { readonly bundle: string; readonly version: string },
  layers: readonly string[],
): Promise<string | undefined> {
  const { bundle, version } = source;
  const remaining = new Set(layers);
  const { tables } = await repository.readManifest(bundle, version);
  for (const { name, shards } of tables) {
    for (const layer of shards.flat()) {
      if (!remaining.delete(`${name}/${layer.contentId}`)) continue;
      try {
        await repository.verifyLayer(bundle, name, layer);
      } catch (error) {
        const { code, message } = CubeError.from(error);
        if (code !== 'CORRUPT') throw error;
        return message;
      }
    }
  }
  return undefined;
}
