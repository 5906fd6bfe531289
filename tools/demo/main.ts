/** `npm start`: the demo, from a trained model to live predictions. */
import { run } from './cli.ts';

process.exitCode = await run();
