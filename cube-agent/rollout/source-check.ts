/** What is wrong with a version where it lies, as this process itself reads it: hosts say the same of what was damaged on its way. */
import { CubeError, type ErrorCode } from '../../lib/core/errors.ts';
import type { Repository } from '../../lib/repository/repository.ts';
import type { Unreadable } from './rollout-view.ts';

/** No later look finds another manifest. What is not signed yet, or gone, may come; a format of the future may be read by others. */
const BAD: ReadonlySet<ErrorCode> = new Set(['CORRUPT', 'TOO_LARGE']);
const PENDING: ReadonlySet<ErrorCode> = new Set(['DENIED', 'NOT_FOUND', 'UNSUPPORTED']);

/** Undefined: the manifest can be read. @throws CubeError when the repository does not say */
export async function manifestFault(
  repository: Repository,
  bundle: string,
  version: string,
): Promise<Unreadable | undefined> {
  try {
    await repository.manifest(bundle, version);
    return undefined;
  } catch (error) {
    const { code, message } = CubeError.from(error);
    if (BAD.has(code)) return { fault: 'version', why: message };
    if (PENDING.has(code)) return { fault: 'fleet', why: message };
    throw error;
  }
}

/**
 * Reads layers through, up to the first that is not what the manifest says. @param layers as table/contentId
 * @returns what is wrong with it; undefined: they are whole here
 */
export async function sourceDamage(
  repository: Repository,
  place: { readonly bundle: string; readonly version: string },
  layers: readonly string[],
): Promise<string | undefined> {
  const { bundle, version } = place;
  const wanted = new Set(layers);
  const { tables } = await repository.manifest(bundle, version);
  for (const { name, shards } of tables) {
    for (const layer of shards.flat()) {
      if (!wanted.delete(`${name}/${layer.contentId}`)) continue;
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
