/** The CTR protocol over gRPC: hypercube.CtrService (proto/ctr.proto). */
import { isUtf8 } from 'node:buffer';
import { CubeError } from '../../lib/core/errors.ts';
import { type FeatureRows, type KeyedRows, scaleDense } from '../../lib/core/feature-rows.ts';
import { parseTsvKeys } from '../../lib/core/tsv-keys.ts';
import type { GrpcHandler } from '../../lib/rpc/grpc-calls.ts';
import {
  CTR_PREDICT,
  CTR_PREDICT_STREAM,
  CTR_SERVICE,
  type CtrRequest,
  decodeCtrRequest,
  encodeCtrResponse,
} from '../../proto/ctr.ts';
import type { LoadedBundle } from '../engine/loaded-bundle.ts';
import { GrpcCallContext } from './call-context.ts';
import { findBundle, PRIORITY_MAX } from './ctr-options.ts';
import { toCtrResponse } from './ctr-response.ts';
import type { Endpoints } from './endpoints.ts';
import {
  createGrpcAdmit,
  handlePrediction,
  type ParsedRequest,
  type ProtocolContext,
} from './handle-prediction.ts';
import { ROWS_PER_REQUEST_MAX } from './request-limits.ts';

/** Maximum features and bag ends in one request. */
const VALUES_MAX = 1 << 20;

export function registerCtrGrpc({ grpc }: Endpoints, context: ProtocolContext): void {
  const predict: GrpcHandler = async (bytes, call) => {
    const request = decodeCtrRequest(bytes, VALUES_MAX);
    return handlePrediction(context, 'ctr', new GrpcCallContext(call, request.priority), {
      find: (models) => findBundle(models, request),
      parse: (choose) => parseRequest(request, choose()),
    });
  };
  const admit = createGrpcAdmit(context, 'ctr');
  grpc.addUnary(CTR_SERVICE, CTR_PREDICT, predict, admit);
  grpc.addBidi(CTR_SERVICE, CTR_PREDICT_STREAM, predict);
}

/** @throws CubeError INVALID_ARGUMENT naming the field, TOO_LARGE */
function parseRequest(request: CtrRequest, bundle: LoadedBundle): ParsedRequest<Uint8Array> {
  const { priority, detail } = request;
  if (priority !== undefined && priority > PRIORITY_MAX) {
    rejectRequest(`priority ${priority} is not in 0..${PRIORITY_MAX}`);
  }
  return {
    bundle,
    detail,
    rows: parseRows(request, bundle),
    ...(priority === undefined ? {} : { priority }),
    formatResponse: (prediction) => encodeCtrResponse(toCtrResponse(prediction, bundle, request)),
  };
}

function parseRows(request: CtrRequest, { features: spec }: LoadedBundle): FeatureRows | KeyedRows {
  const { rowCount, tsv, keys, features, shared } = request;
  const hasFeatures = features.length > 0 || shared !== undefined || request.dense.length > 0;
  const hasKeys = keys.length > 0 || request.scaled.length > 0;
  if (Number(tsv.length > 0) + Number(hasFeatures) + Number(hasKeys) > 1) {
    rejectRequest('give rows as features, as keys or as tsv, but only in one of these forms');
  }
  if (tsv.length > 0) {
    if (isUtf8(tsv)) return parseTsvKeys(tsv, spec, ROWS_PER_REQUEST_MAX);
    return rejectRequest('tsv is not UTF-8 text');
  }
  if (rowCount === 0) rejectRequest('row_count: expected at least one row');
  if (rowCount > ROWS_PER_REQUEST_MAX) {
    const text = `${rowCount} rows in one request, the limit is ${ROWS_PER_REQUEST_MAX}`;
    throw new CubeError('TOO_LARGE', `${text}: send them in several requests`);
  }
  return hasKeys ? parseKeyedRows(request) : parseFeatureRows(request, spec);
}

function parseKeyedRows({ rowCount, keys, scaled, ends }: CtrRequest): KeyedRows {
  const bad = scaled.findIndex((value) => !Number.isFinite(value));
  if (bad >= 0) rejectRequest(`scaled[${bad}]: expected a finite number, got ${scaled[bad]}`);
  return { rowCount, keys, dense: scaled, ...(ends.length === 0 ? {} : { ends }) };
}

function parseFeatureRows(
  { rowCount, dense, features, ends, shared }: CtrRequest,
  spec: LoadedBundle['features'],
): FeatureRows {
  const denseFeatures = spec.dense?.features ?? [];
  const expected = rowCount * denseFeatures.length;
  if (dense.length !== expected) {
    rejectRequest(
      `dense: expected ${expected} values (${rowCount} rows of ${denseFeatures.length})`,
    );
  }
  return {
    rowCount,
    features,
    rawDense: dense,
    dense: scaleDense(dense, rowCount, denseFeatures),
    ...(ends.length === 0 ? {} : { ends }),
    ...(shared === undefined ? {} : { shared: parseSharedFeatures(shared, spec.slots.length) }),
  };
}

function parseSharedFeatures(
  { slots, features, ends }: NonNullable<CtrRequest['shared']>,
  slotNum: number,
): NonNullable<FeatureRows['shared']> {
  for (let i = 0; i < slots.length; i++) {
    if (slots[i]! >= slotNum || (i > 0 && slots[i]! <= slots[i - 1]!)) {
      rejectRequest(`shared.slots: expected slot positions in 0..${slotNum - 1}, ascending`);
    }
  }
  return { slots: Int32Array.from(slots), features, ...(ends.length === 0 ? {} : { ends }) };
}

function rejectRequest(message: string): never {
  throw new CubeError('INVALID_ARGUMENT', message);
}
