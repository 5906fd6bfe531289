/** Opens the client of a protocol by name. */
import { CubeError } from '../../../lib/core/errors.ts';
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

/**
 * @param spec from slots.json, where given
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
  const slotNum = spec?.slots.length ?? shape.slotNum;
  if (slotNum !== shape.slotNum) {
    throw new CubeError(
      'INVALID_ARGUMENT',
      `--slots has ${slotNum} slots, but ${shape.name} has ${shape.slotNum}; ` +
        'give the slots.json of this model',
    );
  }
  const file = toFileColumns(rows, shape, spec);
  if (protocol === 'paddle' || protocol === 'paddle-rpc') {
    if (spec === undefined) {
      throw new CubeError(
        'INVALID_ARGUMENT',
        `--protocol ${protocol} needs --slots, because its clients name slots and scale dense ` +
          'features',
      );
    }
    return protocol === 'paddle'
      ? new PaddleProtocolClient(target, file, spec)
      : new PaddleRpcProtocolClient(target, file, spec);
  }
  const tensors = new FeatureTensors(file, spec);
  if (protocol === 'tfs') return new TfsProtocolClient(target, tensors, spec);
  return new KserveProtocolClient(target, tensors, spec, protocol === 'kserve-binary');
}
