/** The child process of a verification: request on standard input, response on standard output. */
import { text } from 'node:stream/consumers';
import { CubeError } from '../../../lib/core/errors.ts';
import { runProgram } from '../../../lib/platform/program.ts';
import { cutOnnxModel } from './cut-onnx.ts';
import type {
  VerificationProcessRequest,
  VerificationProcessResponse,
} from './verification-client.ts';

async function runVerification({
  model,
  fetch,
  folder,
  samples,
}: VerificationProcessRequest): Promise<VerificationProcessResponse> {
  try {
    const cut = cutOnnxModel(model, fetch);
    if (cut === undefined)
      throw new CubeError('INTERNAL', `${model} changed during the verification`);
    const { verification, outputShapes } = await cut.verify({ folder, samples, isolated: false });
    return { ok: true, verification, outputShapes: [...outputShapes] };
  } catch (error) {
    const { code, message } = CubeError.from(error);
    return { ok: false, code, message };
  }
}

async function run(): Promise<number> {
  const request = JSON.parse(await text(process.stdin)) as VerificationProcessRequest;
  process.stdout.write(JSON.stringify(await runVerification(request)));
  return 0;
}

runProgram(run);
