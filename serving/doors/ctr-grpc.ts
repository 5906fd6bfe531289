/** The CTR door's gRPC twin: hypercube.CtrService (proto/ctr.proto). */
import { isUtf8 } from 'node:buffer';
import { CubeError } from '../../lib/core/errors.ts';
import {
  type FeatureRows,
  type KeyedRows,
  parseTsvKeys,
  scaleDense,
} from '../../lib/core/features.ts';
import type { GrpcHandler } from '../../lib/rpc/grpc-calls.ts';
import {
  CTR_PREDICT,
  CTR_PREDICT_STREAM,
  CTR_SERVICE,
  type CtrRequest,
  decodeCtrRequest,
  encodeCtrResponse,
} from '../../proto/ctr.ts';
import type { LoadedBundle } from '../models/bundle.ts';
import { ROWS_PER_REQUEST_MAX } from '../serving-limits.ts';
import { answer, grpcCall } from './answer.ts';
import { ctrAnswer } from './ctr-answer.ts';
import { bundleOf, PRIORITY_MAX } from './ctr-options.ts';
import type { DoorContext, Fronts } from './fronts.ts';

/** Features and their ends in one request. */
const VALUES_MAX = 1 << 20;

export function addCtrGrpc({ grpc }: Fronts, context: DoorContext): void {
  const predict: GrpcHandler = async (bytes, call) =>
    answer(context, 'ctr', grpcCall(call), () => {
      const request = decodeCtrRequest(bytes, VALUES_MAX);
      const bundle = bundleOf(context.models, request);
      const { priority, detail } = request;
      if (priority !== undefined && priority > PRIORITY_MAX) {
        refuse(`priority ${priority} is not in 0..${PRIORITY_MAX}`);
      }
      return {
        ...{ bundle, detail, rows: rowsOf(request, bundle) },
        ...(priority === undefined ? {} : { priority }),
        answer: (prediction) => encodeCtrResponse(ctrAnswer(prediction, bundle, request)),
      };
    });
  grpc.addUnary(CTR_SERVICE, CTR_PREDICT, predict);
  grpc.addBidi(CTR_SERVICE, CTR_PREDICT_STREAM, predict);
}

/** @throws CubeError INVALID_ARGUMENT naming the field, TOO_LARGE */
function rowsOf(request: CtrRequest, { features: spec }: LoadedBundle): FeatureRows | KeyedRows {
  const { rowCount, tsv, keys, features, shared } = request;
  const hasFeatures = features.length > 0 || shared !== undefined || request.dense.length > 0;
  const hasKeys = keys.length > 0 || request.scaled.length > 0;
  if (Number(tsv.length > 0) + Number(hasFeatures) + Number(hasKeys) > 1) {
    refuse('rows are given as features, as keys or as tsv: in one way only');
  }
  if (tsv.length > 0) {
    if (isUtf8(tsv)) return parseTsvKeys(tsv, spec, ROWS_PER_REQUEST_MAX);
    return refuse('tsv is not UTF-8 text');
  }
  if (rowCount === 0) refuse('row_count: expected at least one row');
  if (rowCount > ROWS_PER_REQUEST_MAX) {
    const text = `${rowCount} rows in one request, the limit is ${ROWS_PER_REQUEST_MAX}`;
    throw new CubeError('TOO_LARGE', `${text}: send them in several requests`);
  }
  return hasKeys ? keyedRows(request) : featureRows(request, spec);
}

function keyedRows({ rowCount, keys, scaled, ends }: CtrRequest): KeyedRows {
  const bad = scaled.findIndex((value) => !Number.isFinite(value));
  if (bad >= 0) refuse(`scaled[${bad}]: expected a finite number, got ${scaled[bad]}`);
  return { rowCount, keys, dense: scaled, ...(ends.length === 0 ? {} : { ends }) };
}

function featureRows(
  { rowCount, dense, features, ends, shared }: CtrRequest,
  spec: LoadedBundle['features'],
): FeatureRows {
  const denseFeatures = spec.dense?.features ?? [];
  const expected = rowCount * denseFeatures.length;
  if (dense.length !== expected) {
    refuse(`dense: expected ${expected} values (${rowCount} rows of ${denseFeatures.length})`);
  }
  return {
    ...{ rowCount, features, rawDense: dense },
    dense: scaleDense(dense, rowCount, denseFeatures),
    ...(ends.length === 0 ? {} : { ends }),
    ...(shared === undefined ? {} : { shared: sharedOf(shared, spec.slots.length) }),
  };
}

function sharedOf(
  { slots, features, ends }: NonNullable<CtrRequest['shared']>,
  slotNum: number,
): NonNullable<FeatureRows['shared']> {
  for (let i = 0; i < slots.length; i++) {
    if (slots[i]! >= slotNum || (i > 0 && slots[i]! <= slots[i - 1]!)) {
      refuse(`shared.slots: expected places in 0..${slotNum - 1}, ascending`);
    }
  }
  return { slots: Int32Array.from(slots), features, ...(ends.length === 0 ? {} : { ends }) };
}

function refuse(what: string): never {
  throw new CubeError('INVALID_ARGUMENT', what);
}
