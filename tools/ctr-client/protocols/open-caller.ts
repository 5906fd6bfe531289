/** The protocols by name. */
import { CubeError } from '../../../lib/core/errors.ts';
import type { FeatureSpec } from '../../../lib/core/slots.ts';
import { columnsOf } from '../rows/row-columns.ts';
import type { RowsFile } from '../rows/rows-file.ts';
import type { Caller, CallTarget } from './caller.ts';
import { CtrCaller } from './ctr-caller.ts';
import { KserveCaller } from './kserve-caller.ts';
import { PaddleCaller } from './paddle-caller.ts';
import { FeatureTensors } from './tensors.ts';
import { TfsCaller } from './tfs-caller.ts';

export const PROTOCOLS = ['ctr', 'ctr-grpc', 'kserve', 'kserve-binary', 'paddle', 'tfs'] as const;

export type Protocol = (typeof PROTOCOLS)[number];

/**
 * @param spec from slots.json, where given
 * @throws CubeError INVALID_ARGUMENT naming a row, UNSUPPORTED where the protocol cannot carry the rows
 */
export function openCaller(
  protocol: Protocol,
  target: CallTarget,
  rows: RowsFile,
  spec: FeatureSpec | undefined,
): Caller {
  if (protocol === 'ctr' || protocol === 'ctr-grpc') {
    return new CtrCaller(target, rows, protocol === 'ctr-grpc');
  }
  const { shape } = target;
  if (!shape.takesFeatures) {
    const what = `${shape.name} takes the ids of its unpruned graph`;
    throw new CubeError('UNSUPPORTED', `${what}: send its rows with --protocol ctr`);
  }
  const slotNum = spec?.slots.length ?? shape.slotNum;
  if (slotNum !== shape.slotNum) {
    const what = `--slots has ${slotNum} slots, ${shape.name} has ${shape.slotNum}`;
    throw new CubeError('INVALID_ARGUMENT', `${what}: give the slots.json of this model`);
  }
  const file = columnsOf(rows, shape, spec);
  if (protocol === 'paddle') {
    if (spec !== undefined) return new PaddleCaller(target, file, spec);
    const why = 'callers name slots and scale dense features themselves there';
    throw new CubeError('INVALID_ARGUMENT', `--protocol paddle needs --slots: ${why}`);
  }
  const tensors = new FeatureTensors(file, spec);
  if (protocol === 'tfs') return new TfsCaller(target, tensors, spec);
  return new KserveCaller(target, tensors, spec, protocol === 'kserve-binary');
}
