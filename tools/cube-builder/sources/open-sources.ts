/** From paths to tables: which files there are, what format they have, which of them make one table. */
import { CubeError } from '../../../lib/core/errors.ts';
import type { InputSpec, RowSource } from './row-source.ts';

/**
 * @returns one source a table, in a fixed order
 * @throws CubeError saying which path is missing, unknown or damaged
 */
export async function openSources(input: InputSpec): Promise<RowSource[]> {
  throw new CubeError('UNSUPPORTED', `cannot read ${input.paths.join(', ')} yet`);
}
