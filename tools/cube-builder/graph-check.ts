/**
 * Checks that the graph of a version loads and has the inputs and outputs that slots.json names.
 * A damaged or wrong model.onnx fails the build instead of every serving process.
 */
import { CubeError } from '../../lib/core/errors.ts';
import type { ClickOutput, SlotSpec } from '../../lib/core/slots.ts';
import { findOutsideColumn } from '../../lib/features/feature-checks.ts';
import { OnnxModel, type OnnxValueInfo } from '../../lib/platform/onnx.ts';

interface GraphFile {
  readonly graph: Uint8Array;
  /** External data files of the graph, by name. */
  readonly data: ReadonlyMap<string, Uint8Array> | undefined;
  /** Name of the file in errors. */
  readonly source: string;
}

/** @throws CubeError with `source` and the first missing input or output, or click column */
export async function checkGraph(file: GraphFile, spec: SlotSpec): Promise<void> {
  const { source } = file;
  const model = await loadGraph(file);
  const has = { input: getNames(model.inputs), output: getNames(model.outputs) };
  await model.release();
  const required: ['input' | 'output', string][] = spec.embeddings.map(({ input }) => [
    'input',
    input,
  ]);
  if (spec.features?.dense !== undefined) required.push(['input', spec.features.dense.input]);
  if (spec.features !== undefined) required.push(['output', spec.features.click.output]);
  for (const [kind, name] of required) {
    if (has[kind].includes(name)) continue;
    throw new CubeError(
      'CORRUPT',
      `${source} has no ${kind} ${JSON.stringify(name)}, which slots.json requires (it has: ` +
        `${has[kind].join(', ')}); prune the model again`,
    );
  }
  if (spec.features !== undefined) checkClickColumn(spec.features.click, model.outputs, source);
}

/** @throws CubeError for a column that the graph does not declare; an unknown output has none */
export function checkClickColumn(
  click: ClickOutput,
  outputs: readonly OnnxValueInfo[],
  source: string,
): void {
  const { shape } = outputs.find(({ name }) => name === click.output) ?? {};
  // onnxruntime gives an unknown rank as 0; serving refuses other ranks by itself.
  if (shape === undefined || shape.length === 0 || shape.length > 2) return;
  const problem = findOutsideColumn(click, shape);
  if (problem === undefined) return;
  throw new CubeError('INVALID_ARGUMENT', `features.json does not match ${source}: ${problem}`);
}

async function loadGraph({ graph, data, source }: GraphFile): Promise<OnnxModel> {
  try {
    return await OnnxModel.load(graph, { source, externalData: data ?? new Map() });
  } catch (error) {
    const { code, message } = CubeError.from(error);
    throw new CubeError(code, `${message.replace(/\.$/, '')}; prune the model again`, {
      cause: error,
    });
  }
}

function getNames(ports: readonly { readonly name: string }[]): string[] {
  return ports.map(({ name }) => name);
}
