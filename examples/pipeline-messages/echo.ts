/**
 * A service with messages of its own: repeats a text and adds numbers.
 *
 *   serving --pipeline examples/pipeline-messages/echo.ts \
 *     --config examples/pipeline-messages/echo.yml --proto examples/pipeline-messages/echo.proto
 */
import { Op, productError, RequestOp, ResponseOp } from 'hypercube/pipeline';

/** The fields of demo.EchoRequest. */
interface EchoRequest {
  readonly text: string;
  readonly times: number;
  readonly scores: Float32Array;
}

interface EchoResponse {
  readonly texts: readonly string[];
  readonly sum: number;
}

const TIMES_MAX = 100;

class Echo extends Op<{ '@DAGExecutor': EchoRequest }, EchoResponse> {
  override preprocess({ '@DAGExecutor': request }: { '@DAGExecutor': EchoRequest }) {
    const { text, times, scores } = request;
    if (times > TIMES_MAX) return productError(51, `times is ${times}; at most ${TIMES_MAX}`);
    const sum = scores.reduce((total, score) => total + score, 0);
    return { texts: Array.from({ length: Math.max(times, 1) }, () => text), sum };
  }
}

const read = new RequestOp<EchoRequest>();
const echo = new Echo({ name: 'echo', inputs: [read] });

export default new ResponseOp({ inputs: [echo] });
