/** The process that proves an ONNX model: an order on its standard input, an answer on its standard output. */
import { text } from 'node:stream/consumers';
import { CubeError } from '../../../lib/core/errors.ts';
import { cutOnnxModel } from './cut-onnx.ts';
import type { ProofAnswer, ProofOrder } from './proof-client.ts';

async function answer({ model, fetch, folder, samples }: ProofOrder): Promise<ProofAnswer> {
  try {
    const cut = cutOnnxModel(model, fetch);
    if (cut === undefined) throw new CubeError('INTERNAL', `${model} changed during the proof`);
    const { proof, outputShapes } = await cut.prove({ folder, samples, isolated: false });
    return { ok: true, proof, outputShapes: [...outputShapes] };
  } catch (error) {
    const { code, message } = CubeError.from(error);
    return { ok: false, code, message };
  }
}

const order = JSON.parse(await text(process.stdin)) as ProofOrder;
process.stdout.write(JSON.stringify(await answer(order)));
