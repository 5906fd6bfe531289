/** `npm start`: the main job, from a trained model to live predictions. */
import { run } from './cli.ts';

process.exitCode = await run();
