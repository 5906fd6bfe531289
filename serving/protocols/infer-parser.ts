/** Parses bodies of KServe inference over HTTP, those with a known head without their JSON. */
import type { SlicedWork } from '../../lib/core/json-slices.ts';
import { isTensorModel, type LoadedVersion } from '../engine/loaded-version.ts';
import { type AnyParsedRequest, runUnlessLarge } from './handle-prediction.ts';
import {
  getModelMetadata,
  type InferRequest,
  type InferResponse,
  readExperimentKey,
  toParsedGraphRequest,
  toParsedRequest,
} from './infer.ts';
import {
  createBinaryChoice,
  formatInferBody,
  type InferBody,
  parseInferBody,
  parseJsonLength,
} from './infer-json.ts';
import type { FoundHead, KnownHeads } from './known-heads.ts';

/** The model of a request. */
export interface ModelChoice {
  /** Its name in the request. */
  readonly model: string;
  /** The version to parse the request for, once the experiment key in the body is known. */
  readonly choose: (key?: string) => LoadedVersion;
}

export class InferParser {
  #heads: KnownHeads | undefined;

  /** Undefined until `loadKnownHeads` has loaded what they need. */
  get heads(): KnownHeads | undefined {
    this.#heads ??= loaded === undefined ? undefined : new loaded.KnownHeads();
    return this.#heads;
  }

  /**
   * @param header Inference-Header-Content-Length as sent
   * @returns a large body in slices
   * @throws CubeError INVALID_ARGUMENT naming the field, input, output or parameter; TOO_LARGE
   */
  parse(
    body: Uint8Array,
    header: string | undefined,
    choice: ModelChoice,
  ): AnyParsedRequest<InferBody> | SlicedWork<AnyParsedRequest<InferBody>> {
    if (header !== undefined) {
      const length = parseJsonLength(body, header);
      if (loaded === undefined) void loadKnownHeads();
      const found = this.heads?.find(body, length);
      if (found !== undefined) return parseKnown(found, choice, body.subarray(length));
    }
    const work = this.#parseUnknown(body, header, choice);
    return runUnlessLarge(work, Number(header ?? body.length));
  }

  *#parseUnknown(
    body: Uint8Array,
    header: string | undefined,
    { model, choose }: ModelChoice,
  ): SlicedWork<AnyParsedRequest<InferBody>> {
    const request = yield* parseInferBody(body, header, () => getModelMetadata(model, choose()));
    const version = choose(readExperimentKey(request.parameters));
    const parsed = toParsed(request, { model, version }, createBinaryChoice(request));
    if (header !== undefined) this.heads?.note(body, Number(header), request);
    return parsed;
  }
}

type KnownHeadsModule = Pick<typeof import('./known-heads.ts'), 'KnownHeads'> &
  Pick<typeof import('./known-rows.ts'), 'prepareRows'>;

let loaded: KnownHeadsModule | undefined;
let isLoading = false;

/**
 * Loads what known heads need, which the start of serving does not. Without it, for example because
 * the program's files were replaced, each request is parsed.
 */
export async function loadKnownHeads(): Promise<void> {
  if (isLoading) return;
  isLoading = true;
  try {
    const [{ KnownHeads }, { prepareRows }] = await Promise.all([
      import('./known-heads.ts'),
      import('./known-rows.ts'),
    ]);
    loaded = { KnownHeads, prepareRows };
  } catch {
    // No request needs it.
  }
}

/** @param data after the head */
function parseKnown(
  found: FoundHead,
  { model, choose }: ModelChoice,
  data: Uint8Array,
): AnyParsedRequest<InferBody> {
  const { head } = found;
  const version = choose(head.experimentKey);
  const known = head.prepared.get(version);
  if (known !== undefined && known.model === model && !isTensorModel(version)) {
    const parsed = known.parse(version, found, data);
    if (parsed !== undefined) return parsed;
  }
  const request = head.toRequest(found, data);
  const parsed = toParsed(request, { model, version }, head.isBinary);
  if ('graph' in parsed) return parsed;
  const outputs = request.outputs.map(({ name }) => name);
  const prepared = loaded?.prepareRows({ model, parsed, head, outputs });
  if (prepared !== undefined) head.prepared.set(version, prepared);
  return parsed;
}

/** @throws CubeError INVALID_ARGUMENT naming input, output or parameter; TOO_LARGE */
function toParsed(
  request: InferRequest,
  { model, version }: { readonly model: string; readonly version: LoadedVersion },
  isBinary: (output: string) => boolean,
): AnyParsedRequest<InferBody> {
  const format = (response: InferResponse): InferBody => formatInferBody(response, isBinary);
  return isTensorModel(version)
    ? toParsedGraphRequest(request, { model, graph: version }, format)
    : toParsedRequest(request, { model, bundle: version }, format);
}
