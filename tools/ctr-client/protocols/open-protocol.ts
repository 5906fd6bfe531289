/** Opens the client of a protocol by name. */
import { CubeError, requireDefined } from '../../../lib/core/errors.ts';
import type { FeatureSpec } from '../../../lib/core/slots.ts';
import { toFileColumns } from '../rows/row-columns.ts';
import type { RowsFile } from '../rows/rows-file.ts';
import { CtrProtocolClient } from './ctr-protocol.ts';
import { KserveProtocolClient } from './kserve-protocol.ts';
import { PaddleProtocolClient } from './paddle-protocol.ts';
import { PaddleRpcProtocolClient } from './paddle-rpc-protocol.ts';
import type { ProtocolClient, ProtocolClientOptions } from './protocol-client.ts';
import { FeatureTensors } from './tensors.ts';
import { TfsProtocolClient } from './tfs-protocol.ts';

export const PROTOCOLS = [
  'ctr',
  'ctr-grpc',
  'kserve',
  'kserve-binary',
  'paddle',
  'paddle-rpc',
  'tfs',
] as const;

export type Protocol = (typeof PROTOCOLS)[number];

/** Whether requests have tensors of columns, which depend on the names and poolings of slots. */
export function needsFeatures(protocol: Protocol): boolean {
  return protocol !== 'ctr' && protocol !== 'ctr-grpc';
}

/**
 * @param spec from slots.json or the endpoint; undefined only where the protocol needs none
 * @throws CubeError INVALID_ARGUMENT naming a row, UNSUPPORTED where the protocol cannot carry the
 *   rows
 */
export function openProtocolClient(
  protocol: Protocol,
  target: ProtocolClientOptions,
  rows: RowsFile,
  spec: FeatureSpec | undefined,
): ProtocolClient {
  if (protocol === 'ctr' || protocol === 'ctr-grpc') {
    return new CtrProtocolClient(target, rows, protocol === 'ctr-grpc');
  }
  const { shape } = target;
  if (!shape.takesFeatures) {
    throw new CubeError(
      'UNSUPPORTED',
      `${shape.name} takes the ids of its unpruned graph; use --protocol ctr`,
    );
  }
  const features = requireDefined(spec, "the model's features");
  const slotNum = features.slots.length;
  if (slotNum !== shape.slotNum) {
    throw new CubeError(
      'INVALID_ARGUMENT',
      `--slots has ${slotNum} slots, but ${shape.name} has ${shape.slotNum}; ` +
        'give the slots.json of this model',
    );
  }
  const file = toFileColumns(rows, shape, features);
  if (protocol === 'paddle') return new PaddleProtocolClient(target, file, features);
  if (protocol === 'paddle-rpc') return new PaddleRpcProtocolClient(target, file, features);
  const tensors = new FeatureTensors(file, features);
  if (protocol === 'tfs') return new TfsProtocolClient(target, tensors, features);
  return new KserveProtocolClient(target, tensors, features, protocol === 'kserve-binary');
}
