/** `npm start`: the demo, from a trained model to live predictions. */
import { runProgram } from '../../lib/platform/program.ts';
import { run } from './cli.ts';

runProgram(run);
